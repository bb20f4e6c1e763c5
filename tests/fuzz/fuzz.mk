# SPDX-License-Identifier: GPL-2.0-or-later
#
# Fuzz targets for whatever reads files. Built by clang with what they test, apart from everything
# else, and only when fuzz.sh asks for them.
CLANG ?= clang-14
FUZZ_TARGETS := gguf safetensors model
FUZZ_SRCS := $(addprefix tests/fuzz/,walk.c mutate_gguf.c mutate_safetensors.c) \
	libndp/error.c libndp/device/bf16.c libndp/device/pack.c $(addprefix libndp/moe/, \
	dequant.c gguf.c gguf-meta.c gguf-split.c safetensors.c tensors.c tensors-dir.c \
	tensors-dtype.c model.c family_config.c family_gguf.c family_tensors.c pack_expert.c \
	router.c)
FUZZ_CFLAGS := -std=gnu11 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -Werror -MMD -MP \
	-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_LIBS := -ljansson -lm
FUZZ_WRAP_model := -Wl,--wrap=mmap,--wrap=munmap

fuzz_obj = $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(1))
FUZZ_PROGRAMS := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/fuzz_%)

$(BUILD)/fuzz/obj/%.o: %.c tests/fuzz/fuzz.mk
	$(call say,CLANG,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) $(NDP_CPPFLAGS) $(FUZZ_CFLAGS) -c -o $@ $<

$(FUZZ_PROGRAMS): $(BUILD)/fuzz/fuzz_%: $(call fuzz_obj,tests/fuzz/fuzz_%.c $(FUZZ_SRCS))
	$(call say,LD,$@)
	$(Q)$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $(filter %.o,$^) \
		$(FUZZ_WRAP_$*) $(FUZZ_LIBS)

.SECONDARY: $(call fuzz_obj,$(FUZZ_SRCS) $(FUZZ_TARGETS:%=tests/fuzz/fuzz_%.c))
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_PROGRAMS)

HOST_CHECKS += tests/fuzz/fuzz.sh

-include $(patsubst %.o,%.d,$(call fuzz_obj,$(FUZZ_SRCS) $(FUZZ_TARGETS:%=tests/fuzz/fuzz_%.c)))
