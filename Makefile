# SPDX-License-Identifier: GPL-2.0-or-later
#
# moendp: one plain GNU make file for the whole tree. `make help` lists the targets.
#
# How a part of the tree hooks in: it owns a fragment `<dir>/<name>.mk` beside its sources; all of
# them are included below (see FRAGMENTS). Paths in a fragment are relative to the top of the tree.
# A fragment only appends to lists and sets `NAME_*` variables; the rules live here:
#
#   CHIP_SRCS    += qemu-device/chip/x.c     numerics and timing, part of libndp, also built into QEMU
#   LIB_SRCS     += libndp/device/x.c        -> build/libndp.so.0 and build/libndp.a
#   LIB_LIBS     += -luring                  what libndp itself links with
#   LIB_MAP       = libndp/libndp.map        symbol versions of the shared library
#   TOOLS        += ndp-run                  -> build/ndp-run, linked with the shared library
#   GUEST_TESTS  += ndp_abi                  -> build/kselftest/ndp_abi, run inside the guest, prints KTAP
#   BENCHES      += bench_chip               -> build/bench/bench_chip, linked with libndp.a
#   HOST_CHECKS  += tests/run/mutation.sh    executable, run from the top by `make check`, prints TAP
#
# Every program NAME of these lists may set
#   NAME_SRCS    its sources (default: <dir>/NAME.c in tests/kselftest, tests/bench)
#   NAME_CFLAGS  flags for all of its sources          NAME_LIBS  libraries, after libndp's
# Unit tests need no list: every tests/unit/test_*.c is one program, linked with libndp.a and cmocka
# (so it may test internals); NAME_SRCS, NAME_CFLAGS and NAME_LIBS work for it as well.
#
# Extra flags for one source:     CFLAGS_<path of the .c> += -mavx2
# Extra flags for a whole folder: CFLAGS_<folder>/        += -Ilibndp/device     (that folder only)
#
# Objects are build/obj/<path of the .c>.o, always position independent, so one object serves the
# static and the shared library. The include path of everything: libndp/include, kmod/uapi,
# qemu-device/chip. Results of tests are TAP files in build/results/.

BUILD     := build
CACHE     := $(or $(NDP_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/moendp)
export NDP_CACHE := $(CACHE)

# Make's own defaults give way, the environment and the command line do not.
ifeq ($(origin CC),default)
CC        := gcc
endif
AR        ?= ar
OPT       ?= -O2 -g
PREFIX    ?= /usr/local
LIBDIR    ?= $(PREFIX)/lib
NDP_CFLAGS   := -std=gnu11 $(OPT) -Wall -Wextra -Werror -fPIC -MMD -MP
NDP_CPPFLAGS := -D_GNU_SOURCE -Ilibndp/include -Ikmod/uapi -Iqemu-device/chip
KERNELS   := 6.1 6.12

# `make V=1` shows the commands.
Q := $(if $(V),,@)
say = @$(if $(V),true,printf '  %-8s%s\n' '$(1)' '$(2)')

CHIP_SRCS :=
LIB_SRCS  :=
LIB_LIBS  :=
LIB_MAP   :=
TOOLS     :=
GUEST_TESTS :=
BENCHES   :=
HOST_CHECKS :=
FRAGMENTS := $(sort $(wildcard libndp/*.mk libndp/*/*.mk qemu-device/*.mk qemu-device/*/*.mk \
	tools/*/*.mk daemon/*.mk tests/*/*.mk))

.PHONY: help
help:	## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Slow products (QEMU, guest kernels) are kept in $(CACHE)"

CFLAGS_qemu-device/chip/chip_avx2.c   += -mavx2 -mfma
CFLAGS_qemu-device/chip/chip_avx512.c += -mavx512f -mavx512bw -mavx512vl -mavx512bf16

include $(FRAGMENTS)

# ---- objects and programs -------------------------------------------------------------------

obj  = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
srcs = $(or $($(2)_SRCS),$(1)/$(2).c)

LIB_OBJS := $(call obj,$(LIB_SRCS) $(CHIP_SRCS))
UNIT_TESTS := $(sort $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c)))

$(BUILD)/obj/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(NDP_CPPFLAGS) $(NDP_CFLAGS) $(CFLAGS_$(dir $<)) $(CFLAGS_$<) $(CFLAGS) -c -o $@ $<

# program NAME, output, default folder of its source, what of libndp it links, extra libraries
define program
$(2): $(call obj,$(call srcs,$(3),$(1))) $(4)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$(filter %.o %.a %.so.0,$$^) \
		$($(1)_LIBS) $(LIB_LIBS) $(5)
$(call obj,$(call srcs,$(3),$(1))): NDP_CFLAGS += $($(1)_CFLAGS)
ALL_OBJS += $(call obj,$(call srcs,$(3),$(1)))
endef

LIB_A  := $(BUILD)/libndp.a
LIB_SO := $(BUILD)/libndp.so.0
ALL_OBJS := $(LIB_OBJS)

$(LIB_A): $(LIB_OBJS)
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(LIB_SO): $(LIB_OBJS) $(LIB_MAP)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libndp.so.0 -Wl,--no-undefined \
		$(addprefix -Wl$(,)--version-script=,$(LIB_MAP)) -o $@ $(LIB_OBJS) $(LIB_LIBS) -lm -pthread
	$(Q)ln -sf libndp.so.0 $(BUILD)/libndp.so
, := ,

# Tools find the library beside themselves in build/; the installed ones are linked without that.
rpath := -Wl,-rpath,'$$$$ORIGIN'
$(foreach t,$(TOOLS),$(eval $(call program,$(t),$(BUILD)/$(t),tools/$(t),$(LIB_SO),-lm -pthread $(rpath))))
$(foreach t,$(TOOLS),$(eval $(call program,$(t),$(BUILD)/install/$(t),tools/$(t),$(LIB_SO),-lm -pthread)))
$(foreach t,$(UNIT_TESTS),$(eval $(call program,$(t),$(BUILD)/unit/$(t),tests/unit,$(LIB_A),-lcmocka -lm -pthread)))
$(foreach t,$(BENCHES),$(eval $(call program,$(t),$(BUILD)/bench/$(t),tests/bench,$(LIB_A),-lm -pthread)))

.PHONY: all
HOST_PARTS := $(LIB_SO) $(LIB_A) $(addprefix $(BUILD)/,$(TOOLS)) \
	$(addprefix $(BUILD)/unit/,$(UNIT_TESTS)) $(addprefix $(BUILD)/bench/,$(BENCHES))
all: $(HOST_PARTS)	## build the host parts: library, tools, unit tests, benches

.PHONY: clean distclean
clean:	## remove build/ (the cache stays)
	$(Q)rm -rf $(BUILD)
distclean: clean	## remove build/ and what the builds keep in the cache
	$(Q)rm -rf $(addprefix $(CACHE)/,apt qemu kernel source)

-include $(patsubst %.o,%.d,$(sort $(ALL_OBJS)))
