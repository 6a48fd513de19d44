/* The part of NVML's C interface that tokentrace uses, for one card with a known power profile.
 *
 * The card draws `tt_idle_mw`, and `tt_load_mw` between tt_load_start_ns and tt_load_end_ns (unix ns). Its energy
 * counter moves every tt_update_ns. The other globals switch single functions off or choose their answers.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

int tt_init_code = 0, tt_count = 1, tt_energy_code = 0, tt_instant_code = 0, tt_power_code = 0, tt_samples_code = 0;
int tt_mig = 0, tt_mig_code = 0, tt_major = 9, tt_minor = 0, tt_temperature_code = 0, tt_lost = 0, tt_pid = 0;
unsigned long long tt_reasons = 0;
unsigned int tt_idle_mw = 70000, tt_load_mw = 600000, tt_limit_mw = 700000, tt_enforced_mw = 700000;
long long tt_load_start_ns = 0, tt_load_end_ns = 0, tt_update_ns = 20000000;
int tt_shutdowns = 0;
int tt_memory_code = 0, tt_free_mib = 70000, tt_mode = 0, tt_persistence = 1, tt_ecc = 0, tt_ecc_code = 0, tt_pending = 0;
int tt_used_mib = 10000, tt_modes_code = 0;
static long long born_ns = 0;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long loaded_ns(long long until) {
    long long end = tt_load_end_ns && tt_load_end_ns < until ? tt_load_end_ns : until;
    return tt_load_start_ns && end > tt_load_start_ns ? end - tt_load_start_ns : 0;
}

static unsigned int power_mw(long long t) {
    int busy = tt_load_start_ns && t >= tt_load_start_ns && (!tt_load_end_ns || t < tt_load_end_ns);
    return busy ? tt_load_mw : tt_idle_mw;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!born_ns) born_ns = now_ns() - 1000000000LL;
    return tt_init_code;
}
nvmlReturn_t nvmlShutdown(void) { tt_shutdowns++; return 0; }
const char *nvmlErrorString(nvmlReturn_t r) { (void)r; return "some error"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int n) { snprintf(out, n, "550.54.15"); return 0; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) { *n = (unsigned)tt_count; return 0; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) {
    if (tt_lost && i == 1) return 15;
    *d = (nvmlDevice_t)(uintptr_t)(i + 1);
    return 0;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned int n) {
    snprintf(out, n, "GPU-%lu", (unsigned long)(uintptr_t)d);
    return 0;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned int n) { (void)d; snprintf(out, n, "Stub"); return 0; }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned int *v) { (void)d; *v = tt_enforced_mw; return 0; }
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, unsigned int *v) { (void)d; *v = tt_limit_mw; return 0; }
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int type, unsigned int *v) { (void)d; (void)type; *v = 1980; return 0; }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int type, unsigned int *v) {
    (void)d; (void)type;
    *v = power_mw(now_ns()) == tt_idle_mw ? 345 : 1560;
    return 0;
}
/* No nvmlDeviceGetTemperatureV: a driver from before it. */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned int *v) {
    (void)d; (void)sensor;
    *v = power_mw(now_ns()) == tt_idle_mw ? 41 : 59;
    return tt_temperature_code;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *v) { (void)d; *v = tt_reasons; return 0; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, unsigned int *v) {
    (void)d;
    v[0] = power_mw(now_ns()) == tt_idle_mw ? 0 : 100;
    v[1] = 10;
    return 0;
}
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, int policy, unsigned long long *v) {
    (void)d;
    v[0] = (unsigned long long)(now_ns() / 1000);
    v[1] = policy == 0 && (tt_reasons & 4) ? (unsigned long long)loaded_ns(now_ns()) : 0;
    return 0;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *now, unsigned int *next) {
    (void)d;
    *now = *next = (unsigned)(tt_mig > 0);
    return tt_mig_code;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *n) { (void)d; *n = 7; return 0; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int i, nvmlDevice_t *m) {
    *m = d;
    return (int)i < tt_mig ? 0 : 6;
}
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, process_t *out) {
    if (!tt_pid || (uintptr_t)d != 1) { *n = 0; return 0; }
    if (!out || *n < 1) { *n = 1; return 7; }
    memset(out, 0, sizeof *out);
    out->pid = (unsigned)tt_pid;
    out->used = (unsigned long long)tt_used_mib << 20;
    *n = 1;
    return 0;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12040; return 0; }
typedef struct { unsigned long long total, free, used; } memory_t;
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, memory_t *m) {
    (void)d;
    m->total = 80000ULL << 20;
    m->free = (unsigned long long)tt_free_mib << 20;
    m->used = m->total - m->free;
    return tt_memory_code;
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, unsigned int *v) { (void)d; *v = (unsigned)tt_mode; return tt_modes_code; }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned int *v) {
    (void)d;
    *v = (unsigned)tt_persistence;
    return tt_modes_code;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *v) {
    (void)d; (void)type; (void)counter;
    *v = (unsigned long long)tt_ecc;
    return tt_ecc_code;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *a, unsigned int *b, unsigned int *pending, unsigned int *failed) {
    (void)d;
    *a = *b = *failed = 0;
    *pending = (unsigned)tt_pending;
    return tt_ecc_code;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    (void)d;
    *major = tt_major;
    *minor = tt_minor;
    return 0;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj) {
    (void)d;
    long long t = now_ns() / tt_update_ns * tt_update_ns, busy = loaded_ns(t);
    *mj = (unsigned long long)(((double)(t - born_ns - busy) * tt_idle_mw + (double)busy * tt_load_mw) / 1e9);
    return tt_energy_code;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw) {
    (void)d;
    *mw = power_mw(now_ns());
    return tt_power_code;
}
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type, code;
    union { unsigned int ui; unsigned long long ull; } value;
} field_t;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, field_t *f) {
    (void)d;
    for (int i = 0; i < n; i++) {
        f[i].code = f[i].field == 186 ? tt_instant_code : 3;
        f[i].type = 1;
        f[i].value.ui = power_mw(now_ns());
    }
    return 0;
}
typedef struct { unsigned long long time_us; union { unsigned int ui; unsigned long long ull; } value; } sample_t;
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t d, int kind, unsigned long long since, int *type, unsigned int *n, sample_t *out) {
    (void)d; (void)kind; (void)since;
    if (tt_samples_code) return tt_samples_code;
    *type = 1;
    if (!out) { *n = 120; return 0; }
    long long t = now_ns() / tt_update_ns * tt_update_ns;
    for (unsigned int i = 0; i < *n; i++) {
        /* The first slots were never filled. */
        long long at = i < 20 ? 0 : t - (long long)(*n - 1 - i) * tt_update_ns;
        out[i].time_us = (unsigned long long)(at / 1000);
        out[i].value.ull = 0;
        out[i].value.ui = at ? power_mw(at) : 0;
    }
    return 0;
}
