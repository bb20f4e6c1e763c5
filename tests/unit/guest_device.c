/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * guest_device.c - linked to a test of libndp's devices, it runs in a guest on
 * the kernel's device and prints TAP.
 */
#include <stdlib.h>

__attribute__((constructor)) static void on_the_kernels_device(void)
{
	setenv("NDP_TEST_DEVICE", "/dev/ndp0", 0);
	setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 0);
}
