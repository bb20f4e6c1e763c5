# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-bench cpu: whom libndp is measured against. libndp itself links with neither: its own kernels
# are faster on what they all run on. oneDNN's threads are libgomp's.
ndp-bench_LIBS += -lxsmm -lxsmmnoblas -ldnnl -lgomp -ldl
