# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run: runs a Mixture-of-Experts model with its experts on NDP DIMMs, CPU, GPU.
TOOLS += ndp-run
NDP_RUN_PARTS := attention check config config_gguf domains engine error generate interrupt json \
	lock migrator model options reference report sampler text trace vec
ndp-run_SRCS := tools/ndp-run/main.c $(NDP_RUN_PARTS:%=tools/ndp-run/%.c)
ndp-run_LIBS := -ljansson

# Unit tests of its parts: tests/unit/test_NAME.c with the sources it is about.
run_test = test_$(1)_SRCS := tests/unit/test_$(1).c $(2:%=tools/ndp-run/%.c)
$(eval $(call run_test,vec,attention vec))
$(eval $(call run_test,sampler,sampler text vec))
$(eval $(call run_test,config,check config config_gguf error reference sampler vec))
