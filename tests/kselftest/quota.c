// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * quota.c - memory of DIMMs: what each user may have, what happens when it is used up or in
 * pieces, and that nobody ever sees what another has left.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"

#define RW		(PROT_READ | PROT_WRITE)
#define MIB		(1ULL << 20)
#define UID_A		1001
#define UID_B		1002

FIXTURE(quota) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	mode_t mode;
	int64_t limit;		/* as found; -ENOENT when there is no such file */
	struct kt_free before;
	char path[64];
};

static void set_quota(const char *path, uint64_t bytes)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	kt_write_file(path, text);
}

FIXTURE_SETUP(quota)
{
	struct stat st;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, 0);
	snprintf(self->path, sizeof(self->path), "/sys/class/ndp/%s/quota_bytes",
		 strrchr(kt_node(), '/') + 1);
	self->limit = kt_read_number(self->path);
	ASSERT_EQ(0, stat(kt_node(), &st));
	self->mode = st.st_mode & 07777;
	ASSERT_EQ(0, chmod(kt_node(), 0666));
	ASSERT_OK(kt_free_read(self->fd, &self->before));
}

FIXTURE_TEARDOWN(quota)
{
	EXPECT_OK(kt_free_wait(self->fd, &self->before, 10000));
	if (self->limit >= 0)
		set_quota(self->path, self->limit);
	chmod(kt_node(), self->mode);
	close(self->fd);
}

typedef FIXTURE_DATA(quota) quota_t;

/*
 * Another user's process. It does what the parent writes into its socket, one letter a time:
 * 'o' opens a file more, 'a' allocates 1 MiB of one replica in the file opened last, 'f' frees the
 * object allocated last, 'q' asks for used MiB, 'l' for the quota in MiB. It answers with an int.
 */
static void other_user(int sock, uid_t uid, unsigned int dimm)
{
	struct kt_bo bo[64];
	struct moendp_query q;
	int fd = -1, nr = 0, r;
	char what;

	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		_exit(1);
	while (recv(sock, &what, 1, 0) == 1) {
		switch (what) {
		case 'o':
			r = fd = kt_open();
			r = r < 0 ? r : 0;
			break;
		case 'a':
			r = nr < 64 ? kt_io(fd, 1U << dimm, MIB, &bo[nr]) : -E2BIG;
			nr += !r;
			break;
		case 'f':
			r = nr ? kt_destroy(&bo[--nr]) : -ENOENT;
			break;
		default:
			r = kt_query(fd, dimm, &q);
			if (!r)
				r = (what == 'q' ? q.used_bytes : q.quota_bytes) / MIB;
			break;
		}
		if (send(sock, &r, sizeof(r), 0) != sizeof(r))
			break;
	}
	_exit(0);
}

struct user {
	pid_t pid;
	int sock;
};

static int start_user(struct user *u, uid_t uid, unsigned int dimm)
{
	int sock[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		return -errno;
	u->pid = fork();
	if (!u->pid) {
		close(sock[0]);
		other_user(sock[1], uid, dimm);
	}
	close(sock[1]);
	u->sock = sock[0];
	return u->pid < 0 ? -errno : 0;
}

static int tell(const struct user *u, char what)
{
	int r;

	if (send(u->sock, &what, 1, 0) != 1 || recv(u->sock, &r, sizeof(r), 0) != sizeof(r))
		return -ECHILD;
	return r;
}

static void end_user(struct user *u)
{
	/* Not only closed: users that were started later have copies of it. */
	shutdown(u->sock, SHUT_RDWR);
	close(u->sock);
	waitpid(u->pid, NULL, 0);
}

#define NEED_QUOTA() do { \
	if (self->limit < 0) \
		SKIP(return, "no %s to set a quota with", self->path); \
} while (0)

TEST_F(quota, counts_over_all_files_of_a_user)
{
	struct user a;

	NEED_QUOTA();
	set_quota(self->path, 5 * MIB);
	ASSERT_EQ(5 * MIB, kt_read_number(self->path));
	ASSERT_OK(start_user(&a, UID_A, self->dimm));
	ASSERT_EQ(0, tell(&a, 'o'));
	EXPECT_EQ(5, tell(&a, 'l'));
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(0, tell(&a, 'a'));
	ASSERT_EQ(0, tell(&a, 'o'));
	EXPECT_EQ(3, tell(&a, 'q'));
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(0, tell(&a, 'a'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	ASSERT_EQ(0, tell(&a, 'o'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	EXPECT_EQ(5, tell(&a, 'q'));
	/* What is given back can be had again, once. */
	EXPECT_EQ(0, tell(&a, 'f'));
	EXPECT_EQ(4, tell(&a, 'q'));
	EXPECT_EQ(0, tell(&a, 'a'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	end_user(&a);
}

TEST_F(quota, of_one_user_is_not_that_of_another)
{
	struct user a, b;

	NEED_QUOTA();
	set_quota(self->path, 2 * MIB);
	ASSERT_OK(start_user(&a, UID_A, self->dimm));
	ASSERT_OK(start_user(&b, UID_B, self->dimm));
	ASSERT_EQ(0, tell(&a, 'o'));
	ASSERT_EQ(0, tell(&b, 'o'));
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(0, tell(&a, 'a'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	EXPECT_EQ(0, tell(&b, 'q'));
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(0, tell(&b, 'a'));
	EXPECT_EQ(-EDQUOT, tell(&b, 'a'));
	EXPECT_EQ(0, tell(&a, 'f'));
	EXPECT_EQ(-EDQUOT, tell(&b, 'a'));
	EXPECT_EQ(0, tell(&a, 'a'));
	end_user(&a);
	end_user(&b);
}

TEST_F(quota, lowered_below_what_is_used_takes_nothing_away)
{
	struct user a;

	NEED_QUOTA();
	set_quota(self->path, 4 * MIB);
	ASSERT_OK(start_user(&a, UID_A, self->dimm));
	ASSERT_EQ(0, tell(&a, 'o'));
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(0, tell(&a, 'a'));
	set_quota(self->path, MIB);
	EXPECT_EQ(4, tell(&a, 'q'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(0, tell(&a, 'f'));
	EXPECT_EQ(-EDQUOT, tell(&a, 'a'));
	EXPECT_EQ(0, tell(&a, 'f'));
	EXPECT_EQ(0, tell(&a, 'a'));
	/* Zero is no limit. */
	set_quota(self->path, 0);
	EXPECT_EQ(0, tell(&a, 'l'));
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(0, tell(&a, 'a'));
	end_user(&a);
}

TEST_F(quota, charges_weights_and_every_replica)
{
	struct kt_place p = kt_spread(self->mask, 7);
	struct moendp_query q0, q;
	struct kt_bo io, w;

	ASSERT_OK(kt_query(self->fd, self->dimm, &q0));
	ASSERT_OK(kt_io(self->fd, self->mask, 3 * KT_PAGE, &io));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(3 * KT_PAGE * kt_count(self->mask), q.used_bytes - q0.used_bytes);
	ASSERT_OK(kt_expert(self->fd, 100, 64, 7 * 32, &p, &w));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(3 * KT_PAGE * kt_count(self->mask) + w.bytes, q.used_bytes - q0.used_bytes);
	/* A migration costs the user nothing. */
	ASSERT_OK(kt_seal(&w));
	p = kt_local(self->dimm, 7);
	ASSERT_OK(kt_migrate(&w, &p));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(3 * KT_PAGE * kt_count(self->mask) + w.bytes, q.used_bytes - q0.used_bytes);
	ASSERT_OK(kt_destroy(&io));
	ASSERT_OK(kt_destroy(&w));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(q0.used_bytes, q.used_bytes);
}

/* A creation that fails in the middle gives everything back, quota included. */
TEST_F(quota, failed_creation_charges_nothing)
{
	struct kt_free now;
	struct kt_place p;
	struct kt_bo bo;

	/* The last range does not fit: the DIMM holds fewer blocks. */
	p.nr = 2;
	p.r[0] = (struct moendp_range){ self->dimm, 4 };
	p.r[1] = (struct moendp_range){ self->dimm, 1 << 18 };
	EXPECT_EQ(-ENOSPC, kt_expert(self->fd, 64, 64, ((1 << 18) + 4) * 32, &p, &bo));
	ASSERT_OK(kt_free_read(self->fd, &now));
	EXPECT_EQ(0, memcmp(&now, &self->before, sizeof(now)));
}

/* Fills a DIMM with objects of a size; returns how many there are. */
static unsigned int fill_dimm(quota_t *self, uint64_t bytes, struct kt_bo *bo, unsigned int max,
			      int *last)
{
	unsigned int nr = 0;

	while (nr < max && !(*last = kt_io(self->fd, 1U << self->dimm, bytes, &bo[nr])))
		nr++;
	return nr;
}

#define MAX_PIECES	300

TEST_F(quota, exhausted_memory_is_ENOSPC_and_comes_back_zeroed)
{
	static struct kt_bo bo[MAX_PIECES];
	const uint64_t total = self->before.free_bytes[self->dimm];
	const uint64_t piece = (total / 8) & ~(KT_PAGE - 1);
	struct moendp_query q;
	unsigned int nr;
	int last;

	nr = fill_dimm(self, piece, bo, MAX_PIECES, &last);
	EXPECT_EQ(-ENOSPC, last);
	EXPECT_EQ(total / piece, nr);
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(total - nr * piece, q.free_bytes);
	/* What is left can be had to the last page. */
	if (q.largest_free_bytes) {
		ASSERT_OK(kt_io(self->fd, 1U << self->dimm, q.largest_free_bytes, &bo[nr]));
		nr++;
	}
	EXPECT_EQ(-ENOSPC, kt_io(self->fd, 1U << self->dimm, 1, &bo[nr]));
	for (unsigned int i = 0; i < nr; i++) {
		ASSERT_OK(kt_map(&bo[i], RW));
		for (uint64_t at = 0; at < bo[i].bytes; at += KT_PAGE)
			*(uint64_t *)(bo[i].map + at + 8 * (at / KT_PAGE % 512)) =
				0xa5a5a5a5a5a5a5a5ULL;
	}
	for (unsigned int i = 0; i < nr; i++)
		ASSERT_OK(kt_destroy(&bo[i]));
	ASSERT_OK(kt_free_wait(self->fd, &self->before, 5000));
	nr = fill_dimm(self, piece, bo, MAX_PIECES, &last);
	for (unsigned int i = 0; i < nr; i++) {
		ASSERT_OK(kt_map(&bo[i], PROT_READ));
		for (uint64_t at = 0; at < bo[i].bytes; at += KT_PAGE) {
			ASSERT_EQ(0, *(uint64_t *)(bo[i].map + at + 8 * (at / KT_PAGE % 512)) |
				     *(uint64_t *)(bo[i].map + at)) {
				TH_LOG("piece %u at %#llx", i, (unsigned long long)at);
			}
		}
		ASSERT_OK(kt_destroy(&bo[i]));
	}
}

/* Memory in pieces: the sum is free, and an object that needs it in one piece is refused. */
TEST_F(quota, fragmented_memory)
{
	static struct kt_bo bo[MAX_PIECES];
	const uint64_t total = self->before.free_bytes[self->dimm];
	/* Larger than what is kept for migrations, which is a hole, too. */
	const uint64_t piece = (total / 8) & ~(KT_PAGE - 1);
	struct moendp_query q;
	struct kt_place p;
	struct kt_bo w;
	unsigned int nr, blocks;
	int last;

	nr = fill_dimm(self, piece, bo, MAX_PIECES, &last);
	ASSERT_LE(8, nr);
	for (unsigned int i = 0; i < nr; i += 2)
		ASSERT_OK(kt_destroy(&bo[i]));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_LE(piece * (nr / 2), q.free_bytes);
	EXPECT_LT(q.largest_free_bytes, 2 * piece);
	EXPECT_EQ(-ENOSPC, kt_io(self->fd, 1U << self->dimm, 2 * piece, &w));
	/* The same amount as two ranges fits: ranges are contiguous each, not together. */
	blocks = piece / 12288;
	p.nr = 2;
	p.r[0] = (struct moendp_range){ self->dimm, blocks };
	p.r[1] = (struct moendp_range){ self->dimm, blocks };
	EXPECT_OK(kt_expert(self->fd, 64, 64, 2 * blocks * 32, &p, &w));
	p = kt_local(self->dimm, 2 * blocks);
	{
		struct kt_bo too_long;

		EXPECT_EQ(-ENOSPC, kt_expert(self->fd, 64, 64, 2 * blocks * 32, &p, &too_long));
	}
	ASSERT_OK(kt_destroy(&w));
	for (unsigned int i = 1; i < nr; i += 2)
		ASSERT_OK(kt_destroy(&bo[i]));
	/* The holes join again. */
	ASSERT_OK(kt_free_wait(self->fd, &self->before, 5000));
}

/* Two tenants, whose processes come and go: neither finds anything of the other's. */
TEST_F(quota, tenants_see_nothing_of_each_other)
{
	for (int round = 0; round < 8; round++) {
		const uid_t uid = round & 1 ? UID_A : UID_B;
		int status;
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			struct kt_bo bo;
			int fd;

			if (setgroups(0, NULL) || setresgid(uid, uid, uid) ||
			    setresuid(uid, uid, uid))
				_exit(1);
			fd = kt_open();
			if (fd < 0 || kt_io(fd, self->mask, 2 * MIB, &bo) || kt_map(&bo, RW))
				_exit(2);
			if (!kt_io_is(&bo, self->mask, 0, 0, 2 * MIB))
				_exit(3);
			kt_io_fill(&bo, self->mask, 0, 0xc0 + round, 2 * MIB);
			/* Dies with everything open. */
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		ASSERT_TRUE(WIFSIGNALED(status)) {
			TH_LOG("tenant %u ended with %d: %s", uid, WEXITSTATUS(status),
			       WEXITSTATUS(status) == 3 ? "memory was not zero" : "set-up");
		}
		ASSERT_OK(kt_free_wait(self->fd, &self->before, 5000));
	}
}

TEST_HARNESS_MAIN
