/* How every entry point begins and ends: the lock, counting, injected failures, the call log, violations. */
#ifndef CUDA_SIM_CALLS_H
#define CUDA_SIM_CALLS_H
#include "settings.h"

typedef enum { DRIVER_API, RUNTIME_API } api_t;

/* What a call asks of its thread. */
enum {
    ANY_THREAD = 0,
    NEEDS_CONTEXT = 1,       /* rejected without a current context */
    SHOULD_HAVE_CONTEXT = 2, /* handles and ranges know their context, and a real driver may let the call pass: it goes
                                on here too, but it is a violation */
    NO_INITIALISATION = 4,    /* answers before cuInit, and in a forked child */
    SYNCHRONISES = 8,
};

typedef struct entry {
    const char *name;
    unsigned long calls;
    int needs;
    struct entry *next;
} entry_t;

/* One entry point: `expression` is evaluated under the lock when nothing rejects the call before; the rest is logged. */
#define CALL(api, needs_of_call, expression, ...)                                  \
    ({                                                                             \
        static entry_t entry_ = {.name = __func__, .needs = (needs_of_call)};      \
        result_t result_ = enter_call(&entry_, (api));                             \
        if (result_ == OK) result_ = (expression);                                 \
        leave_call(result_, __func__, __VA_ARGS__);                                \
    })
#define DRIVER_CALL(needs, expression, ...) CALL(DRIVER_API, needs, expression, __VA_ARGS__)

result_t enter_call(entry_t *entry, api_t api);
result_t leave_call(result_t result, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

void lock_model(void);
void unlock_model(void);
result_t initialise(void);
const entry_t *called_entries(void);

/* Something a real GPU would reject, or punish later. The sentence has no addresses, so that equal ones are counted. */
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A call that is not modelled: counted as a violation, and rejected. */
result_t unsupported(const char *what);

typedef struct {
    char sentence[240];
    unsigned long count;
} violation_t;
const violation_t *violations(int *count);
unsigned long synchronisations(void);
int calls_were_made(void);
int is_forked_child(void);
#endif
