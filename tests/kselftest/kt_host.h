/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kt_host.h - ask the machine around this guest to pull a DIMM, plug it again or break it.
 *
 * The guest's /bin/host (tests/vm/guest-host.sh) carries the request. On a machine without it
 * every call returns -ENOENT, and tests that need it skip. DIMM K is QEMU's device dimmK.
 */
#ifndef KT_HOST_H
#define KT_HOST_H

#include "kt.h"

bool kt_host_there(void);
/* Runs `host ARGS`; -EREMOTEIO when the host refuses. Its answer, without the newline. */
int kt_host(char *answer, size_t bytes, const char *args, ...)
	__attribute__((format(printf, 3, 4)));
/* Sets a property of a DIMM's device, such as x-inject-drop. */
int kt_set(unsigned int dimm, const char *property, const char *value);
int kt_unplug(unsigned int dimm);
int kt_plug(unsigned int dimm);
/* The PCI address of a DIMM's function, such as 0000:05:00.0. */
int kt_pci_address(unsigned int dimm, char *address, size_t bytes);
/* Takes the function from the driver, and gives it back: what unplugging does, without a host. */
int kt_unbind(const char *address);
int kt_bind(const char *address);
/* The driver's patience with a DIMM in ms; -EACCES when it cannot be changed. Returns the old. */
int kt_timeout_ms(unsigned int ms);
/* Waits until QUERY says so; the mask is of the domain node @fd. */
int kt_wait_state(int fd, unsigned int dimm, uint32_t state, unsigned int timeout_ms);

#endif /* KT_HOST_H */
