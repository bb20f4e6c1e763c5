# SPDX-License-Identifier: GPL-2.0-or-later
# ndp-bench layer reads routing traces, which are gzip.
ndp-bench_LIBS += -lz
