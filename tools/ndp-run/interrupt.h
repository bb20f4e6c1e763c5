/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * interrupt.h - SIGINT and SIGTERM: an orderly end, and if that takes too long
 * an end.
 */
#ifndef NDP_RUN_INTERRUPT_H
#define NDP_RUN_INTERRUPT_H

#include <ndp/error.h>

/*
 * Installs the handlers.  System calls are interrupted (EINTR), and 0.8 s after
 * the signal the process ends by itself whatever it is doing: the kernel then
 * gives back what it held.  @last_words (may be NULL, must stay) is written to
 * stdout in that case.
 */
int interrupt_setup(const char *last_words, struct ndp_error *err);

/* From here on stdout has been written: no last words any more. */
void interrupt_mute(void);

/* -EINTR with a sentence when a signal has arrived, 0 otherwise. */
int interrupt_check(struct ndp_error *err);

/* 128 + the signal that has arrived. */
int interrupt_status(void);

#endif
