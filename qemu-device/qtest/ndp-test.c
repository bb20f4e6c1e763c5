/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: the list of tests
 *
 * The groups are in hw/ndp/qtest: registers and rings, commands, links,
 * injected faults, reset and unplug, and all of it under -icount.
 */
#include "qemu/osdep.h"
#include "hw/ndp/qtest/ndp-lib.h"

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ndp_add_register_tests();
    ndp_add_command_tests();
    ndp_add_bad_command_tests();
    ndp_add_link_tests();
    ndp_add_fault_tests();
    ndp_add_reset_tests();
    ndp_add_icount_tests();
    return g_test_run();
}
