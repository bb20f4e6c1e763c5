# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-mkmodel: writes synthetic Mixture-of-Experts models.
TOOLS += ndp-mkmodel
ndp-mkmodel_SRCS := $(addprefix tools/ndp-mkmodel/,main.c values.c encode.c plan.c files.c)
ndp-mkmodel_LIBS := -ljansson
CFLAGS_tools/ndp-mkmodel/values.c += -O3
HOST_CHECKS += tests/run/mkmodel.sh
