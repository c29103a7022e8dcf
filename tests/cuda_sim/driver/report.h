/* One line of JSON per process, appended to CUDA_SIM_REPORT when the process ends. */
#ifndef CUDA_SIM_REPORT_H
#define CUDA_SIM_REPORT_H
void note_unhandled_launch(void);
unsigned long unhandled_launches(void);
void write_report(void);
#endif
