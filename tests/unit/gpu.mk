# SPDX-License-Identifier: GPL-2.0-or-later
# test_gpu_queue counts what libndp allocates.
test_gpu_queue_LIBS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
