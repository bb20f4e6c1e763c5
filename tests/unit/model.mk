# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of model files and loading that need more than their own source.
test_model_families_SRCS := tests/unit/test_model_families.c \
	$(addprefix tools/ndp-mkmodel/,values.c encode.c plan.c files.c)
test_load_SRCS := tests/unit/test_load.c $(addprefix tools/ndp-mkmodel/,values.c encode.c plan.c files.c)
test_load_LIBS := -Wl,--wrap=ndpi_host_available,--wrap=malloc,--wrap=calloc,--wrap=mmap \
	-Wl,--wrap=pthread_create,--wrap=posix_memalign
