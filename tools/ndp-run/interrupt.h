/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * interrupt.h - SIGINT and SIGTERM: an orderly end, and if that takes too long
 * an end.  And SIGBUS: mapped memory that went away.
 */
#ifndef NDP_RUN_INTERRUPT_H
#define NDP_RUN_INTERRUPT_H

#include <ndp/error.h>
#include <stdbool.h>

/*
 * Installs the handlers.  System calls are interrupted (EINTR), and 0.8 s after
 * the signal the process ends by itself whatever it is doing: the kernel then
 * gives back what it held.  When @json a document that says so is written to
 * stdout in that case.
 */
int interrupt_setup(bool json, struct ndp_error *err);

/*
 * From here on SIGBUS ends the process with @status, @message on stderr and, with
 * JSON, in a document on stdout.  Both must stay.  @message needs no escapes.
 */
void interrupt_on_lost_memory(int status, const char *message);

/* From here on stdout has been written: no documents any more. */
void interrupt_mute(void);

/* -EINTR with a sentence when a signal has arrived, 0 otherwise. */
int interrupt_check(struct ndp_error *err);

/* 128 + the signal that has arrived. */
int interrupt_status(void);

#endif
