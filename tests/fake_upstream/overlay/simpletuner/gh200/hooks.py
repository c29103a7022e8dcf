"""The functions the patches call."""


class LoopHooks:
    def gh200_begin(self, pair, *, number=0):
        return pair


def settings_of(given):
    return given


def loaded(value, kind="store"):
    return value


def every(answer):
    return answer
