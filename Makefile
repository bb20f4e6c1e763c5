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
#   BENCH_RUNS   += tests/bench/f3.sh        executable, run by `make bench`, prints `bar F.n` lines
#   DAEMON_BENCH_RUNS += tests/bench/p.sh    executable, run by `make bench-daemon`, prints `bar P.n` lines
#   SCHED_BENCH_RUNS += tests/bench/s.sh     executable, run by `make bench-sched`, prints `bar S.n` lines
#   MOE_BENCH_RUNS += cpu                    `ndp-bench cpu --bars`, or an executable (with a '/'), run by
#                                            `make bench-moe`, prints `bar D.n` lines
#   BENCH_PARTS  += build/bench/x.so         what `make bench` builds besides (rules in the fragment)
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
# static and the shared library. The include path of everything is libndp/include; who may see more
# (docs/architecture.md, layers) is said below. Results of tests are TAP files in build/results/.

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
UDEVDIR   ?= /lib/udev
UNITDIR   ?= /lib/systemd/system
SYSUSERSDIR ?= /usr/lib/sysusers.d
SYSCONFDIR ?= /etc
VERSION   := 0.1.0
NDP_CFLAGS   := -std=gnu11 $(OPT) -Wall -Wextra -Werror -fPIC -MMD -MP
NDP_CPPFLAGS := -D_GNU_SOURCE -Ilibndp/include
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
BENCH_RUNS :=
BENCH_PARTS :=
SCHED_BENCH_RUNS :=
DAEMON_BENCH_RUNS :=
MOE_BENCH_RUNS :=
FRAGMENTS := $(sort $(wildcard libndp/*.mk libndp/*/*.mk qemu-device/*.mk qemu-device/*/*.mk \
	tools/*/*.mk daemon/*.mk tests/*/*.mk))

.PHONY: help
help:	## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / { sub(/ .*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Slow products (QEMU, guest kernels) are kept in $(CACHE)"


# Unit tests may name the numbers of the register header; nothing else in user space may.
CFLAGS_tests/unit/ += -Ikmod

# Layers: only libndp's devices and the tests see the kernel's interface and the chip.
$(foreach d,libndp/device tests/unit tests/kselftest tests/bench,\
	$(eval CFLAGS_$(d)/ += -Ikmod/uapi -Iqemu-device/chip))

include $(FRAGMENTS)

# ---- objects and programs -------------------------------------------------------------------

obj  = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
srcs = $(or $($(2)_SRCS),$(1)/$(2).c)

LIB_OBJS := $(call obj,$(LIB_SRCS) $(CHIP_SRCS))
UNIT_TESTS := $(sort $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c)))

$(BUILD)/obj/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(NDP_CPPFLAGS) $(NDP_CFLAGS) $(CFLAGS_$(dir $<)) $(CFLAGS_$<) \
		$(PROGRAM_CFLAGS_$<) $(CFLAGS) -c -o $@ $<

# program NAME, output, default folder of its source, what of libndp it links, extra libraries
define program
$(2): $(call obj,$(call srcs,$(3),$(1))) $(4)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$(filter %.o %.a %.so.0,$$^) \
		$($(1)_LIBS) $(LIB_LIBS) $(5)
ALL_OBJS += $(call obj,$(call srcs,$(3),$(1)))
$(foreach s,$(call srcs,$(3),$(1)),$(eval PROGRAM_CFLAGS_$(s) := $($(1)_CFLAGS)))
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
$(foreach t,$(GUEST_TESTS),$(eval $(call program,$(t),$(BUILD)/kselftest/$(t),tests/kselftest,$(LIB_A),-lm -pthread)))

# The kernel's own test harness is not in any -dev package; guest-kernel.sh knows where it is.
KSELFTEST_INC := $(CACHE)/kernel/source/tools/testing/selftests
$(KSELFTEST_INC)/kselftest_harness.h:
	$(Q)tests/vm/guest-kernel.sh source >/dev/null
$(foreach t,$(GUEST_TESTS),$(call obj,$(call srcs,tests/kselftest,$(t)))): \
	| $(KSELFTEST_INC)/kselftest_harness.h

HOST_PARTS := $(LIB_SO) $(LIB_A) $(addprefix $(BUILD)/,$(TOOLS)) \
	$(addprefix $(BUILD)/unit/,$(UNIT_TESTS)) $(addprefix $(BUILD)/bench/,$(BENCHES))
GUEST_PARTS := $(addprefix $(BUILD)/kselftest/,$(GUEST_TESTS))

.PHONY: setup all
setup:	## install what is missing by apt-get
	$(Q)tools/build/setup.sh
all: $(HOST_PARTS)	## build the host parts: library, tools, unit tests, benches

# ---- the driver, for every guest kernel -------------------------------------------------------

KMOD_SRCS := Kbuild kmod/Kbuild $(wildcard kmod/*.[ch] kmod/uapi/*.h)

# Builds in a copy, so that the trees of several kernels live side by side.
# $(call kmod_build,kernel,folder,more for make)
define kmod_build
	$(call say,KMOD,$(2)/moendp.ko)
	$(Q)mkdir -p $(2) && rsync -a Kbuild kmod $(2)/
	$(Q)k=$$(tests/vm/$(if $(filter debug,$(1)),debug-kernel.sh,guest-kernel.sh $(1))) && \
		MAKEFLAGS= $(MAKE) --no-print-directory -s -j$$(nproc) -C $$k/build \
			M=$(abspath $(2)) CONFIG_DEBUG_INFO_BTF_MODULES= $(3) modules
	$(Q)cp $(2)/kmod/moendp.ko $(2)/moendp.ko
endef

$(BUILD)/kmod-%/moendp.ko: $(KMOD_SRCS)
	$(call kmod_build,$*,$(@D))

.PHONY: modules modules-style
modules: $(KERNELS:%=$(BUILD)/kmod-%/moendp.ko)	## build moendp.ko for the guest kernels
modules-style:
	$(call kmod_build,$(KERNEL),$(BUILD)/style-$(KERNEL),W=1 KCFLAGS=-Werror \
		$(if $(SPARSE),C=2 CF="-D__CHECK_ENDIAN__"))

# ---- the emulator ----------------------------------------------------------------------------

QEMU := $(BUILD)/qemu/qemu-system-x86_64
QEMU_SRCS := $(shell find qemu-device kmod/ndp_regs.h -type f)
$(QEMU): $(QEMU_SRCS)
	$(Q)qemu-device/build.sh
	$(Q)touch $@

.PHONY: qemu
qemu: $(QEMU)	## build QEMU with the NDP DIMM (minutes once, then seconds)

# ---- guests and tests -------------------------------------------------------------------------

MODEL := tests/models/tiny-moe
GUEST_MODEL := $(foreach f,config.json model.safetensors reference.json,\
	--file $(MODEL)/$(f):payload/tiny-moe/$(f))
RUN_VM := tests/vm/run-vm.sh

# The first prompt only, for what is slow on an emulated CPU.
SHORT_REFERENCE := $(BUILD)/reference-short.json
$(SHORT_REFERENCE): $(MODEL)/reference.json
	$(Q)python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); \
		r["prompts"] = r["prompts"][:1]; json.dump(r, open(sys.argv[2], "w"))' $< $@

# The prompts in another order: C first, prose then.
C_FIRST_REFERENCE := $(BUILD)/reference-c-first.json
$(C_FIRST_REFERENCE): $(MODEL)/reference.json
	$(Q)mkdir -p $(@D)
	$(Q)python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); \
		r["prompts"].sort(key=lambda p: p["kind"] != "c"); \
		json.dump(r, open(sys.argv[2], "w"))' $< $@

# A model whose shapes fit no tile, with a reference of its own.
ODD_MODEL := $(BUILD)/odd-moe
$(ODD_MODEL)/reference.json: tests/models/synthetic.py
	$(Q)$< $(@D)
GUEST_RUN := $(GUEST_MODEL) --file $(BUILD)/ndp-run

.PHONY: demo demo-run
demo:	## boot a guest with four NDP DIMMs and generate text with every expert on them
	$(Q)tests/vm/demo.sh $(MAKE)
demo-parts: $(BUILD)/ndp-run $(BUILD)/ndpd $(C_FIRST_REFERENCE) $(BUILD)/kmod-6.1/moendp.ko $(QEMU)
demo-run: demo-parts
	$(Q)$(RUN_VM) --name demo --kernel 6.1 --dimms 4 --script tests/vm/guest-demo.sh $(GUEST_RUN) \
		--file $(BUILD)/ndpd --file tests/vm/guest-demo-report.sh \
		--file $(C_FIRST_REFERENCE):payload/tiny-moe/reference-c-first.json \
		--file share/hosts:payload/share/hosts

# A suite runs its tests and keeps the results; a check runs a suite and judges it.
SUITES := unit qtest style vm
SUITE := tests/suite.sh
RESULTS := $(BUILD)/results
.PHONY: check check-parts check-run $(SUITES:%=suite-%) $(SUITES:%=check-%) qtest check-debug bench \
	suite-vm-runner suite-vm-deb check-deb

check:	## everything that must hold: unit tests, device, style, guests (installs what is missing)
	$(Q)$(MAKE) --no-print-directory setup
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) check-parts || { echo "0 passed, 1 failed"; exit 1; }
	$(Q)$(MAKE) --no-print-directory check-run
check-parts: all modules $(QEMU) $(GUEST_PARTS)
check-run: check-parts
	$(Q)rm -rf $(RESULTS)
	$(Q)for s in $(SUITES); do $(MAKE) --no-print-directory suite-$$s || \
		{ mkdir -p $(RESULTS); echo "not ok - suite $$s did not run" >$(RESULTS)/$$s.tap; }; done
	$(Q)tests/tally.sh $(RESULTS)/*.tap

# $(call judged_check,suite): the recipe of a check of one suite
define judged_check
	$(Q)rm -f $(RESULTS)/$(1)*.tap
	$(Q)$(MAKE) --no-print-directory suite-$(1)
	$(Q)tests/tally.sh $(RESULTS)/$(1)*.tap
endef
check-unit:	## unit tests and ndp-run on the host
	$(call judged_check,unit)
qtest check-qtest:	## the QEMU device without a guest
	$(call judged_check,qtest)
check-style:	## checkpatch, sparse, W=1, shellcheck, licences
	$(call judged_check,style)
check-vm:	## boot the guests: the model on every placement, kselftests
	$(call judged_check,vm)
check-deb:	## Debian packages: lintian, DKMS, and a Debian 12 with systemd that has them
	$(Q)tools/build/setup.sh packages.txt packages-qemu.txt packages-deb.txt
	$(call judged_check,vm-deb)
check-debug: suite-vm-debug	## the guest tests under KASAN and lockdep (builds a kernel: 25 minutes once)
	$(Q)tests/tally.sh $(RESULTS)/vm-debug.tap

suite-unit: all
	$(Q)for t in $(UNIT_TESTS); do \
		CMOCKA_MESSAGE_OUTPUT=TAP $(SUITE) unit-$$t $(BUILD)/unit/$$t; done
	$(Q)for t in $(HOST_CHECKS); do $(SUITE) unit-$$(basename $$t .sh) $$t; done
suite-qtest: $(QEMU)
	$(Q)$(SUITE) qtest qemu-device/build.sh test
suite-style: $(QEMU)
	$(Q)$(SUITE) style tests/style.sh
suite-vm: suite-vm-runner $(KERNELS:%=suite-vm-%)
suite-vm-deb: $(QEMU) $(SHORT_REFERENCE)
	$(Q)$(SUITE) vm-deb tests/vm/deb.sh $(KERNELS)
suite-vm-runner: $(QEMU)
	$(Q)$(SUITE) vm-runner tests/vm/runner-test.sh

# One boot of one kernel runs all guest tests.
define vm_suite
.PHONY: suite-vm-$(1)
suite-vm-$(1): $(BUILD)/kmod-$(1)/moendp.ko $(BUILD)/ndp-run $(BUILD)/ndpctl $(GUEST_PARTS) $(QEMU) \
		$(SHORT_REFERENCE) $(ODD_MODEL)/reference.json
	$$(Q)$(SUITE) vm-$(1) $(RUN_VM) --name check-$(1) --kernel $(1) $(2) \
		--script tests/vm/guest-check.sh $(GUEST_RUN) --file tests/run/guest-cases.sh \
		--file $(BUILD)/ndpctl --file share/hosts/trimoe-paper.json:share/hosts/trimoe-paper.json \
		--file $$$$(command -v flock) \
		--file $(ODD_MODEL):payload/odd-moe \
		--file $(SHORT_REFERENCE):payload/tiny-moe/reference-short.json \
		$(foreach t,$(GUEST_PARTS),--file $(t):payload/kselftest/$(notdir $(t)))
endef
# The disk is for what direct I/O must not do: write into a mapping of a DIMM. The debug kernel has no
# driver for it, and that test skips itself.
VM_DISK := --nvme 64M --module nvme
$(foreach k,$(KERNELS),$(eval $(call vm_suite,$(k),--timeout 2400 $(VM_DISK))))
$(eval $(call vm_suite,debug,--timeout 9000 --mem 1G --env NDP_TIMEOUT=3000 --env NDP_DEBUG_KERNEL=1))

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz:	## fuzz the readers of model files, FUZZ_SECONDS=60 each (make check: a fixed number of inputs)
	$(Q)tests/fuzz/fuzz.sh $(FUZZ_SECONDS)

bench: $(HOST_PARTS) $(GUEST_PARTS) $(BENCH_PARTS) modules $(QEMU)	## measure and print the bars F.1 to F.5
	$(Q)tests/bench/run-all.sh $(BENCH_RUNS)

.PHONY: bench-sched
bench-sched: $(HOST_PARTS)	## measure the scheduler, modelled and in wall time: bars S.1 to S.5
	$(Q)failed=0; for run in $(SCHED_BENCH_RUNS); do echo "== $$run"; $$run || failed=1; done; exit $$failed

.PHONY: bench-moe
bench-moe: $(HOST_PARTS)	## measure the dispatcher and its domains: bars D.1 to D.6
	$(Q)tests/bench/bench-moe.sh $(MOE_BENCH_RUNS)

.PHONY: bench-daemon
bench-daemon: $(HOST_PARTS)	## measure the placement daemon and its tools: bars P.1 to P.5
	$(Q)failed=0; for run in $(DAEMON_BENCH_RUNS); do echo "== $$run"; $$run || failed=1; done; exit $$failed

# ---- installing -------------------------------------------------------------------------------

.PHONY: install install-parts deb
# What runs as a service is in sbin; completions of bash exist for some tools.
DAEMONS := ndpd
COMPLETIONS := $(wildcard share/completions/*)
install-parts: $(LIB_SO) $(LIB_A) $(addprefix $(BUILD)/install/,$(TOOLS))
install: install-parts	## install library, headers, tools, ndpd, man pages, udev rule (PREFIX, DESTDIR)
	$(Q)install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(PREFIX)/sbin $(LIBDIR)/pkgconfig \
		$(PREFIX)/include/ndp $(foreach s,1 3 5 8,$(PREFIX)/share/man/man$s) \
		$(PREFIX)/share/moendp/hosts $(PREFIX)/share/moendp/models $(UDEVDIR)/rules.d \
		$(UNITDIR) $(SYSUSERSDIR) $(SYSCONFDIR)/ndp)
	$(Q)install -m 755 $(addprefix $(BUILD)/install/,$(filter-out $(DAEMONS),$(TOOLS))) \
		$(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 755 $(addprefix $(BUILD)/install/,$(DAEMONS)) $(DESTDIR)$(PREFIX)/sbin
	$(Q)install -m 644 $(LIB_SO) $(LIB_A) $(DESTDIR)$(LIBDIR)
	$(Q)ln -sf libndp.so.0 $(DESTDIR)$(LIBDIR)/libndp.so
	$(Q)install -m 644 libndp/include/ndp/*.h $(DESTDIR)$(PREFIX)/include/ndp
	$(Q)sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' -e 's|@version@|$(VERSION)|' \
		-e 's|@libs@|$(LIB_LIBS)|' \
		libndp/libndp.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/libndp.pc
	$(Q)for d in hosts models; do install -m 644 share/$$d/*.json \
		$(DESTDIR)$(PREFIX)/share/moendp/$$d; done
	$(Q)install -m 644 kmod/*.rules $(DESTDIR)$(UDEVDIR)/rules.d
	$(Q)for s in 1 3 5 8; do install -m 644 docs/man/*.$$s $(DESTDIR)$(PREFIX)/share/man/man$$s; done
	$(Q)sed -e 's|/usr/sbin/|$(PREFIX)/sbin/|' share/ndpd/ndpd.service >$(DESTDIR)$(UNITDIR)/ndpd.service
	$(Q)for c in moendp ndpd; do install -m 644 share/ndpd/$$c.sysusers \
		$(DESTDIR)$(SYSUSERSDIR)/$$c.conf; done
	$(Q)[ -e $(DESTDIR)$(SYSCONFDIR)/ndp/ndpd.conf ] || \
		install -m 644 share/ndpd/ndpd.conf $(DESTDIR)$(SYSCONFDIR)/ndp
ifneq ($(COMPLETIONS),)
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(Q)install -m 644 $(COMPLETIONS) $(DESTDIR)$(PREFIX)/share/bash-completion/completions
endif

deb:	## build Debian packages into build/deb (installs what is missing)
	$(Q)tools/build/setup.sh packages.txt packages-deb.txt
	$(Q)tools/build/deb.sh

.PHONY: clean distclean
clean:	## remove build/ (the cache stays)
	$(Q)rm -rf $(BUILD)
distclean: clean	## remove build/ and what the builds keep in the cache
	$(Q)rm -rf $(addprefix $(CACHE)/,apt deb qemu kernel source)

-include $(patsubst %.o,%.d,$(sort $(ALL_OBJS)))
