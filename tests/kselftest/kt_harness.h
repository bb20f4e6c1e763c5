/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kt_harness.h - the kernel's test harness, with patience: an emulated CPU with a debug kernel is
 * a hundred times slower than what its 30 seconds a test were made for.
 */
#ifndef KT_HARNESS_H
#define KT_HARNESS_H

#include "kselftest_harness.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#endif /* KT_HARNESS_H */
