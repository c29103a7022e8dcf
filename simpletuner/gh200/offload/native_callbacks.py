"""The two functions that torch's allocator calls for a block of managed memory, as machine code.

Torch holds its allocator's lock meanwhile, and a thread that holds the GIL may wait for that lock: for statistics, or to
free a tensor, which the garbage collector may do anywhere. So nothing here ever waits for the GIL. The lock also makes
whoever is in here the only one; numba is loaded at the first call, as only runs with managed memory need it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ..memory.budget import CEILING, CELL, HANDED, IN_USE, LIMIT
from ..memory.driver import ATTACH_GLOBAL, Advice, Driver

# What one kind of memory shares with this code, number by number.
# Which context and places its blocks have (0: mapped for nobody), whether free HBM counts for them; then their bytes.
CONTEXT, PREFERS, MAPPED_FOR, ON_GPU, BYTES, PEAK = range(6)
OUT, FREE_HBM, ROWS = 6, 7, 8  # two answers of the driver; rows of the table that were ever used
# What did not go well: how often, and of the last time the bytes asked for and the detail.
NOTES, NOTE = 9, 3
OVER_LIMIT, OVER_AVAILABLE, OVER_TABLE, INFO, PUSH, POP, ALLOCATE, ADVISE, FREE = KINDS_OF_NOTE = tuple(range(9))
# Where blocks begin (0: none), and their bytes. Torch's smallest have 2 MB, those of large tensors 20 MB or more.
TABLE, ROW, CAPACITY = NOTES + NOTE * len(KINDS_OF_NOTE), 2, 1 << 18
CELLS = TABLE + ROW * CAPACITY

PREFERRED, ACCESSED = int(Advice.SET_PREFERRED_LOCATION), int(Advice.SET_ACCESSED_BY)
# Where memory seems to be short the check is repeated, as its number is that of the last look.
PAUSES, PAUSE_MICROSECONDS = 20, 50_000
_WORD, _NUMBER = ctypes.c_int64, ctypes.c_int32


def callbacks(driver: Driver, own: int, budget: int) -> tuple[int, int]:
    """Addresses of both functions, bound to the cells of one kind and those of the budget."""
    from numba import cfunc, types

    allocate, give_back = compiled(driver)
    word, number = types.int64, types.int32

    @cfunc(word(word, number, word))
    def new_block(size, device, stream):  # type: ignore[no-untyped-def]
        return allocate(own, budget, size)

    @cfunc(types.void(word, word, number, word))
    def freed(pointer, size, device, stream):  # type: ignore[no-untyped-def]
        give_back(own, budget, pointer, size)

    for callback in (new_block, freed):
        # Torch may call them while the interpreter ends, when modules are gone: one reference too many keeps the code.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
    return new_block.address, freed.address


@cache
def compiled(driver: Driver) -> tuple[Any, Any]:
    """Both functions for any cells: about a second, once per process."""
    cells = _cells()
    note = _note(cells)
    enter, leave = _context(driver, cells, note)
    is_available = _is_available(driver, cells, note)
    return _allocate(driver, cells, note, enter, leave, is_available), _give_back(driver, cells, note, enter, leave)


def _of_driver(driver: Driver, name: str, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(_NUMBER, *arguments)(driver.function(name))


def _cells() -> Any:
    from numba import carray, njit, types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(types.int64)(types.int64), generate

    @njit
    def cells(address):  # type: ignore[no-untyped-def]
        return carray(pointer(address), CELLS)

    return cells


def _note(cells: Any) -> Any:
    from numba import njit, types

    @njit(types.void(types.int64, types.int64, types.int64, types.int64))
    def note(own, kind, size, detail):  # type: ignore[no-untyped-def]
        mine, at = cells(own), NOTES + NOTE * kind
        mine[at + 1], mine[at + 2] = size, detail
        mine[at] += 1

    return note


def _context(driver: Driver, cells: Any, note: Any) -> tuple[Any, Any]:
    """A thread of torch's may have another context, or none."""
    from numba import njit, types

    push, pop = (_of_driver(driver, name, _WORD) for name in ("cuCtxPushCurrent", "cuCtxPopCurrent"))

    @njit(types.int64(types.int64))
    def enter(own):  # type: ignore[no-untyped-def]
        return push(cells(own)[CONTEXT])

    @njit(types.void(types.int64))
    def leave(own):  # type: ignore[no-untyped-def]
        # A context that stays pushed would be the wrong one for whatever this thread does next: tried twice.
        if pop(own + CELL * OUT):
            failed = pop(own + CELL * OUT)
            if failed:
                note(own, POP, 0, failed)

    return enter, leave


def _is_available(driver: Driver, cells: Any, note: Any) -> Any:
    from numba import njit, types

    info = _of_driver(driver, "cuMemGetInfo", _WORD, _WORD)
    pause = ctypes.CFUNCTYPE(_NUMBER, ctypes.c_uint32)(("usleep", ctypes.CDLL(None)))

    @njit(types.boolean(types.int64, types.int64, types.int64))
    def is_available(own, budget, size):  # type: ignore[no-untyped-def]
        mine, shared = cells(own), cells(budget)
        if shared[IN_USE] + size > shared[LIMIT]:
            note(own, OVER_LIMIT, size, shared[IN_USE])
            return False
        free = 0
        if mine[ON_GPU]:
            failed = info(own + CELL * FREE_HBM, own + CELL * OUT)
            if failed:
                note(own, INFO, size, failed)
                return False
            free = mine[FREE_HBM]
        pauses = 0
        while shared[HANDED] + size > shared[CEILING] + free:
            if pauses == PAUSES:
                note(own, OVER_AVAILABLE, size, shared[CEILING] - shared[HANDED])
                return False
            pause(PAUSE_MICROSECONDS)
            pauses += 1
        return True

    return is_available


def _placed(driver: Driver, cells: Any, note: Any) -> Any:
    from numba import njit, types

    allocate_managed = _of_driver(driver, "cuMemAllocManaged", _WORD, _WORD, ctypes.c_uint32)
    # A place is a struct of two 32-bit numbers: on both machines that is passed as one of 64.
    advise = _of_driver(driver, "cuMemAdvise", _WORD, _WORD, _NUMBER, _WORD)

    @njit(types.int64(types.int64, types.int64))
    def placed(own, size):  # type: ignore[no-untyped-def]
        mine = cells(own)
        failed = allocate_managed(own + CELL * OUT, size, ATTACH_GLOBAL)
        if failed:
            note(own, ALLOCATE, size, failed)
            return 0
        pointer = mine[OUT]
        failed = advise(pointer, size, PREFERRED, mine[PREFERS])
        if not failed and mine[MAPPED_FOR]:
            failed = advise(pointer, size, ACCESSED, mine[MAPPED_FOR])
        if failed:
            # Advice only says where pages should be; without it they are still right.
            note(own, ADVISE, size, failed)
        return pointer

    return placed


def _allocate(driver: Driver, cells: Any, note: Any, enter: Any, leave: Any, is_available: Any) -> Any:
    from numba import njit, types

    placed = _placed(driver, cells, note)

    @njit(types.int64(types.int64, types.int64, types.int64))
    def allocate(own, budget, size):  # type: ignore[no-untyped-def]
        mine, shared, row, pointer = cells(own), cells(budget), 0, 0
        while row < mine[ROWS] and mine[TABLE + ROW * row]:
            row += 1
        if row == CAPACITY:
            note(own, OVER_TABLE, size, CAPACITY)
            return 0
        failed = enter(own)
        if failed:
            note(own, PUSH, size, failed)
            return 0
        if is_available(own, budget, size):
            pointer = placed(own, size)
        leave(own)
        if pointer:
            mine[TABLE + ROW * row + 1], mine[TABLE + ROW * row] = size, pointer
            mine[ROWS] = max(mine[ROWS], row + 1)
            mine[BYTES] += size
            mine[PEAK] = max(mine[PEAK], mine[BYTES])
            shared[IN_USE] += size
            shared[HANDED] += size
        return pointer

    return allocate


def _give_back(driver: Driver, cells: Any, note: Any, enter: Any, leave: Any) -> Any:
    from numba import njit, types

    release = _of_driver(driver, "cuMemFree", _WORD)

    @njit(types.void(types.int64, types.int64, types.int64, types.int64))
    def give_back(own, budget, pointer, size):  # type: ignore[no-untyped-def]
        mine, shared, failed = cells(own), cells(budget), 0
        for _ in range(2):  # what is not given back is lost until the process ends
            failed = enter(own)
            if not failed:
                failed = release(pointer)
                leave(own)
            if not failed:
                break
        if failed:
            note(own, FREE, size, failed)
            return
        for row in range(mine[ROWS]):
            if mine[TABLE + ROW * row] == pointer:
                mine[TABLE + ROW * row] = 0
                break
        mine[BYTES] -= size
        shared[IN_USE] -= size

    return give_back
