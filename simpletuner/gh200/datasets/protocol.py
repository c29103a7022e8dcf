"""The meeting of ranks as a table: what a process does next, after what came of the step before.

Nothing here touches the system. `rendezvous` performs the steps on real locks and memory, and the tests perform them on a
model of both, in every order of three processes with a death at any point.

The system's part: one file for each user, real folder, NUMA node and codec, never written to, on which processes hold
record locks. *The claim* is byte 0: alone it is held by the one that stages, shared by those that attach. *A word* is one
more byte, whose position says where its holder's record is in memory. The kernel drops both when a process ends, whatever
its children do, so there is no record of the dead, and no process number is believed that the kernel does not name.
"""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """What a process does next."""

    LOOK = "look for the word of one that holds the dataset"
    ASK = "ask the kernel who holds the claim"
    REMEMBER = "see what became of the one that was watched"
    WATCH = "read how far the holder of the claim is"
    PAUSE = "pause"
    CLAIM = "take the claim alone"
    LOOK_AGAIN = "look again, with the claim"
    ANNOUNCE = "give one's word: staging"
    FILL = "stage the folder"
    PUBLISH = "change one's word: here it is"
    VERIFY = "look for files that changed meanwhile"
    SHARE = "take the claim with others"
    ATTACH = "attach to the memory of the one that gave its word"
    JOIN = "give one's word: here it is"
    LEAVE = "let go of the claim"
    RETRY = "let go of the claim, and begin again"
    GIVE_UP = "let go of the claim, and read from disk"
    TELL = "leave the error in one's record, let go of the claim"
    HOLDING = "hold the dataset"
    DISK = "read from disk, with the reason"
    STOP_ENDED = "stop: the one that staged for this run has ended"
    STOP_TOLD = "stop, with the error of the one that staged for this run"
    STOP_FAILED = "stop, with one's own error"


class Came(StrEnum):
    """What came of a step."""

    DONE = "done"
    READY = "there is one"
    NOBODY = "there is none"
    BUSY = "held"
    FREE = "not held"
    GOT = "got it"
    REFUSED = "refused"
    MOVING = "within its time"
    STALLED = "no progress for too long"
    EARLY = "none of this run, and the first rank should stage"
    ENDED = "it ended while it was staging, in this run"
    TOLD = "it left an error, in this run and with these options"
    GONE = "it has let go of it"
    FAILED = "an error, or the system refuses"


TABLE: dict[tuple[Step, Came], Step] = {
    (Step.LOOK, Came.READY): Step.SHARE,
    (Step.LOOK, Came.NOBODY): Step.ASK,
    (Step.LOOK, Came.FAILED): Step.DISK,
    (Step.ASK, Came.BUSY): Step.WATCH,
    (Step.ASK, Came.FREE): Step.REMEMBER,
    (Step.REMEMBER, Came.NOBODY): Step.CLAIM,
    (Step.REMEMBER, Came.EARLY): Step.PAUSE,
    (Step.REMEMBER, Came.ENDED): Step.STOP_ENDED,
    (Step.REMEMBER, Came.TOLD): Step.STOP_TOLD,
    (Step.WATCH, Came.MOVING): Step.PAUSE,
    (Step.WATCH, Came.STALLED): Step.DISK,
    (Step.PAUSE, Came.DONE): Step.LOOK,
    (Step.CLAIM, Came.GOT): Step.LOOK_AGAIN,
    (Step.CLAIM, Came.REFUSED): Step.WATCH,
    (Step.LOOK_AGAIN, Came.READY): Step.ATTACH,
    (Step.LOOK_AGAIN, Came.NOBODY): Step.ANNOUNCE,
    (Step.LOOK_AGAIN, Came.FAILED): Step.GIVE_UP,
    (Step.ANNOUNCE, Came.DONE): Step.FILL,
    (Step.FILL, Came.DONE): Step.PUBLISH,
    (Step.FILL, Came.FAILED): Step.TELL,
    (Step.PUBLISH, Came.DONE): Step.VERIFY,
    (Step.VERIFY, Came.DONE): Step.LEAVE,
    (Step.SHARE, Came.GOT): Step.ATTACH,
    (Step.SHARE, Came.REFUSED): Step.WATCH,
    (Step.ATTACH, Came.DONE): Step.JOIN,
    (Step.ATTACH, Came.GONE): Step.RETRY,
    (Step.ATTACH, Came.FAILED): Step.GIVE_UP,
    (Step.JOIN, Came.DONE): Step.LEAVE,
    (Step.LEAVE, Came.DONE): Step.HOLDING,
    (Step.RETRY, Came.DONE): Step.PAUSE,
    (Step.GIVE_UP, Came.DONE): Step.DISK,
    (Step.TELL, Came.DONE): Step.STOP_FAILED,
}

FIRST = Step.LOOK
LAST = frozenset({Step.HOLDING, Step.DISK, Step.STOP_ENDED, Step.STOP_TOLD, Step.STOP_FAILED})
# The claim is held throughout, alone or shared; a death there is seen by the kernel.
WITH_CLAIM = frozenset(
    {
        *(Step.LOOK_AGAIN, Step.ANNOUNCE, Step.FILL, Step.PUBLISH, Step.VERIFY, Step.ATTACH, Step.JOIN),
        *(Step.LEAVE, Step.RETRY, Step.GIVE_UP, Step.TELL),
    }
)


class Word(StrEnum):
    """What a record says of its owner."""

    STAGING = "staging"
    HERE = "here it is"
    FAILED = "failed"


def remembered(word: Word | None, same_run: bool, same_options: bool, my_turn: bool) -> Came:
    """What became of the one that was watched, once the claim was seen free. None: nobody was, or not of this run.

    The order matters: a record is read after the claim was seen free, so one that still says "staging" is of a dead one.
    """
    if same_run and word is Word.STAGING:
        return Came.ENDED
    if same_run and same_options and word is Word.FAILED:
        return Came.TOLD
    return Came.NOBODY if my_turn else Came.EARLY
