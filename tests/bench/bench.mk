# SPDX-License-Identifier: GPL-2.0-or-later
#
# The benches of `make bench`: F.2 (bench_chip), F.3 (bench_ffn), F.4 (bench_uring and insn_split, a
# plugin of the emulator), F.5 (bench_migrate).

BENCHES += bench_chip bench_ffn bench_uring bench_migrate
bench_uring_LIBS := -luring
BENCH_PARTS += $(BUILD)/bench/insn_split.so
BENCH_RUNS += $(BUILD)/bench/bench_chip tests/bench/bench-vm.py tests/bench/bench-uring.sh \
	tests/bench/bench-migrate.sh

$(BUILD)/bench/insn_split.so: tests/bench/insn_split.c $(BUILD)/qemu/qemu-system-x86_64
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(filter-out -MMD -MP,$(NDP_CFLAGS)) -shared -o $@ $< \
		-isystem "$$(qemu-device/build.sh dir)/src/include/qemu" \
		$$(pkg-config --cflags glib-2.0)
