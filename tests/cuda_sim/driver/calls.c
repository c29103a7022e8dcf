#include "calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contexts.h"
#include "report.h"

#define MAX_VIOLATIONS 256

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int initialised, in_forked_child;
static unsigned long chosen_calls, driver_calls, injected_failures, synchronised;
static entry_t *entries;
static violation_t seen[MAX_VIOLATIONS];
static int seen_count;
static pid_t counting_process;
static __thread const char *present_call = "outside any call";
static __thread int violated;

void lock_model(void) { pthread_mutex_lock(&guard); }
void unlock_model(void) { pthread_mutex_unlock(&guard); }
const entry_t *called_entries(void) { return entries; }
unsigned long synchronisations(void) { return synchronised; }
int is_forked_child(void) { return in_forked_child; }
/* A child made by vfork shares this memory until it becomes another program: the calls are not its own. */
int calls_were_made(void) { return entries != NULL && counting_process == getpid(); }

const violation_t *violations(int *count) {
    *count = seen_count;
    return seen;
}

/* A forked child inherits no usable CUDA state, and has its own report. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&guard, NULL);
    in_forked_child = initialised;
    for (entry_t *entry = entries; entry;) {
        entry_t *next = entry->next;
        entry->calls = 0;
        entry->next = NULL;
        entry = next;
    }
    entries = NULL;
    seen_count = 0;
    synchronised = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(lock_model, unlock_model, after_fork_in_child);
}

result_t initialise(void) {
    if (in_forked_child) return NOT_INITIALIZED;
    if (initialised) return OK;
    read_settings();
    if (settings.init_error) return settings.init_error;
    initialised = 1;
    return OK;
}

static int is_chosen_to_fail(const entry_t *entry, api_t api) {
    if (!settings.fail_name) return 0;
    if (!strcmp(settings.fail_name, "*")) return api == DRIVER_API;
    return !strcmp(settings.fail_name, entry->name);
}

static int failure_is_injected(const entry_t *entry, api_t api) {
    if (is_chosen_to_fail(entry, api) && chosen_calls++ >= (unsigned long)settings.fail_after &&
        (!settings.fail_times || injected_failures < (unsigned long)settings.fail_times)) {
        injected_failures++;
        return 1;
    }
    return api == DRIVER_API && settings.fail_every && ++driver_calls % (unsigned long)settings.fail_every == 0;
}

/* For a check that lets one function fail for a while, in its own process: NULL ends it. */
API void cuda_sim_fail(const char *name, int code, int after) {
    lock_model();
    settings.fail_name = name ? strdup(name) : NULL;
    settings.fail_code = code;
    settings.fail_after = after;
    settings.fail_times = 0;
    chosen_calls = 0;
    unlock_model();
}

static result_t rejection_without_context(const entry_t *entry, api_t api) {
    if (!(entry->needs & (NEEDS_CONTEXT | SHOULD_HAVE_CONTEXT))) return OK;
    if (api == RUNTIME_API) return bind_runtime_context();
    context_state_t state = current_context_state();
    if (state == CONTEXT_ALIVE) return OK;
    if (state == NO_CONTEXT) violation("the calling thread has no current context");
    else violation("the calling thread's current context has been released");
    if (!(entry->needs & NEEDS_CONTEXT)) return OK;
    return state == NO_CONTEXT ? INVALID_CONTEXT : CONTEXT_IS_DESTROYED;
}

result_t enter_call(entry_t *entry, api_t api) {
    lock_model();
    present_call = entry->name;
    if (!entries) counting_process = getpid();
    if (!entry->calls++) {
        entry->next = entries;
        entries = entry;
    }
    if (entry->needs & NO_INITIALISATION) return OK;
    if (in_forked_child) return NOT_INITIALIZED;
    if (api == RUNTIME_API) {
        result_t bad = initialise();
        if (bad) return bad;
    }
    if (!initialised) return NOT_INITIALIZED;
    if (failure_is_injected(entry, api)) return settings.fail_code;
    result_t bad = rejection_without_context(entry, api);
    if (!bad && entry->needs & SYNCHRONISES) synchronised++;
    return bad;
}

static void log_call(result_t result, const char *name, const char *format, va_list arguments) {
    const char *path = getenv("CUDA_SIM_LOG");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    if (!file) return;
    char line[512];
    int length = snprintf(line, sizeof line, "%s ", name);
    length += vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
    if (length > 480) length = 480;
    snprintf(line + length, sizeof line - (size_t)length, " -> %d\n", result);
    fputs(line, file); /* one write: several processes may share the file */
    fclose(file);
}

/* The Python stack of a violation, for whoever has to find its cause; asked for outside the lock, as it takes the GIL. */
static void trace_violation(const char *name) {
    int (*is_initialised)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *, void *) = (int (*)(const char *, void *))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
    if (!is_initialised || !ensure || !release || !run || !is_initialised()) return;
    fprintf(stderr, "simulated GPU: violation in %s:\n", name);
    int state = ensure();
    run("import traceback; traceback.print_stack()", NULL);
    release(state);
}

result_t leave_call(result_t result, const char *name, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_call(result, name, format, arguments);
    va_end(arguments);
    int trace = violated && settings.trace_violations;
    violated = 0;
    present_call = "outside any call";
    unlock_model();
    if (trace) trace_violation(name);
    return result;
}

void violation(const char *format, ...) {
    char sentence[sizeof seen->sentence];
    int length = snprintf(sentence, sizeof sentence, "%s: ", present_call);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence + length, sizeof sentence - (size_t)length, format, arguments);
    va_end(arguments);
    violated = 1;
    for (int i = 0; i < seen_count; i++) {
        if (!strcmp(seen[i].sentence, sentence)) {
            seen[i].count++;
            return;
        }
    }
    if (seen_count == MAX_VIOLATIONS) {
        seen[MAX_VIOLATIONS - 1].count++;
        return;
    }
    strcpy(seen[seen_count].sentence, sentence);
    seen[seen_count++].count = 1;
}

result_t unsupported(const char *what) {
    violation("unsupported call %s", what);
    return NOT_SUPPORTED;
}
