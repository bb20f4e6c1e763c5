/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_uring.c - the ring of a queue on the kernel's device: what it asks
 * for, and the sentence when it cannot be had. A seccomp filter plays the
 * container that forbids io_uring.
 */
#include "device_ref.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libndp/device/kernel.h"

/* From here on io_uring_setup() fails with @error in this process. */
static int forbid_io_uring(int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = 4, .filter = code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void check_refusal(int error, const char *says)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (!child) {
		struct io_uring ring;
		struct ndp_error err;
		int bad = forbid_io_uring(error) || ndpi_kernel_ring(&ring, 8, &err) != -error ||
			  err.code != -error || !strstr(err.message, says) ||
			  !strstr(err.message, "ndp_run() works without");

		if (bad)
			fprintf(stderr, "%s\n", err.message);
		_exit(bad);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void a_ring_that_is_forbidden_names_io_uring(void **state)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "r");
	int disabled = 0;

	UNUSED_STATE;
	if (f) {
		assert_int_equal(fscanf(f, "%d", &disabled), 1);
		fclose(f);
	}
	check_refusal(EPERM, disabled ? "kernel.io_uring_disabled" : "seccomp filter");
	check_refusal(ENOSYS, "has no io_uring, or a seccomp filter hides it");
	check_refusal(EINVAL, "Linux 5.19");
	check_refusal(ENOMEM, "ulimit -l");
}

static void a_ring_has_large_entries_and_room_for_the_depth(void **state)
{
	static const unsigned int depths[] = { 1, 3, 256, 4096 };
	struct io_uring ring;
	struct ndp_error err;

	UNUSED_STATE;
	for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
		int r = ndpi_kernel_ring(&ring, depths[i], &err);

		if (r == -EPERM || r == -ENOSYS)
			skip(); /* no io_uring on this machine at all */
		assert_int_equal(r, 0);
		assert_true(ring.flags & IORING_SETUP_SQE128);
		assert_true(ring.flags & IORING_SETUP_CQE32);
		assert_false(ring.flags & (IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL));
		for (unsigned int n = 0; n < depths[i]; n++)
			assert_non_null(io_uring_get_sqe(&ring));
		io_uring_queue_exit(&ring);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_ring_that_is_forbidden_names_io_uring),
		cmocka_unit_test(a_ring_has_large_entries_and_room_for_the_depth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
