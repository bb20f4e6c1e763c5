# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-reference: the fluid bound and the optimum of whole experts, by GLPK.
TOOLS += ndp-reference
ndp-reference_SRCS := $(addprefix tools/ndp-reference/,count.c main.c protocol.c solve.c)
ndp-reference_LIBS := -lglpk
