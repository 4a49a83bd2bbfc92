/* Two ends of a TCP connection that know nothing of us, and the seccomp filters that they run under (seccomp.py).
 *
 *   seccomp_talk server MOMENT FILTER           prints its port; echoes one connection to its end
 *   seccomp_talk client MOMENT FILTER PORT      sends 256 KiB in pieces, checks what comes back
 *   seccomp_talk exec FILTER LIBRARY PROGRAM... the program, under the filter and LD_PRELOAD=LIBRARY ("-": without)
 *
 * MOMENT: never | start | connected: when the process installs FILTER itself. FILTER: kill|trap|errno, then
 *   deny NR[/INDEX/VALUE],...   these calls (whose argument of that index has the value; &VALUE: one of its bits)
 *   allow NR,NR,...             all others
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char* what) {
  fprintf(stderr, "seccomp_talk: %s: %s\n", what, strerror(errno));
  exit(1);
}

static struct sock_filter step(unsigned short code, unsigned k, unsigned char jt, unsigned char jf) {
  const struct sock_filter out = {code, jt, jf, k};
  return out;
}

static unsigned action_of(const char* name) {
  if (strcmp(name, "kill") == 0) return SECCOMP_RET_KILL_PROCESS;
  if (strcmp(name, "trap") == 0) return SECCOMP_RET_TRAP;
  return SECCOMP_RET_ERRNO | EPERM;
}

/* filter: "kill deny 1/2/3", as one argument */
static void install(const char* filter) {
  static struct sock_filter program[2048];
  char text[16384], *rest = text, *action, *kind, *list, *one;
  unsigned short n = 0;
  unsigned verdict;
  snprintf(text, sizeof text, "%s", filter);
  action = strsep(&rest, " ");
  kind = strsep(&rest, " ");
  list = rest;
  if (kind == NULL || list == NULL) fail("filter");
  verdict = action_of(action);
  program[n++] = step(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
  while ((one = strsep(&list, ",")) != NULL) {
    unsigned number = 0, index = 0, value = 0;
    const int by_bit = strchr(one, '&') != NULL;
    const int fields = sscanf(one, by_bit ? "%u/%u/&%u" : "%u/%u/%u", &number, &index, &value);
    if (fields == 1) {
      program[n++] = step(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
      program[n++] = step(BPF_RET | BPF_K, strcmp(kind, "allow") == 0 ? SECCOMP_RET_ALLOW : verdict, 0, 0);
    } else {
      program[n++] = step(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4);
      program[n++] = step(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + index * 8, 0, 0);
      program[n++] = step(BPF_JMP | (by_bit ? BPF_JSET : BPF_JEQ) | BPF_K, value, 0, 1);
      program[n++] = step(BPF_RET | BPF_K, verdict, 0, 0);
      program[n++] = step(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    }
  }
  program[n++] = step(BPF_RET | BPF_K, strcmp(kind, "allow") == 0 ? verdict : SECCOMP_RET_ALLOW, 0, 0);
  {
    struct sock_fprog all = {n, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
    /* Both ways that programs have. */
    if (n % 2 == 0 ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0
                   : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all) != 0)
      fail("filter");
  }
}

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons((unsigned short)port);
  return address;
}

static void send_all(int fd, const char* data, size_t length) {
  while (length > 0) {
    const ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
    if (sent < 0) fail("send");
    data += sent;
    length -= (size_t)sent;
  }
}

enum { kPiece = 4096, kPieces = 64 };

static int serve(const char* moment, const char* filter) {
  struct sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  int client;
  char data[kPiece];
  if (listener < 0) fail("socket");
  if (bind(listener, (struct sockaddr*)&address, length) != 0) fail("bind");
  if (listen(listener, 5) != 0) fail("listen");
  if (getsockname(listener, (struct sockaddr*)&address, &length) != 0) fail("getsockname");
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  client = accept(listener, NULL, NULL);
  if (client < 0) fail("accept");
  if (strcmp(moment, "connected") == 0) install(filter);
  for (;;) {
    const ssize_t got = recv(client, data, sizeof data, 0);
    if (got < 0) fail("recv");
    if (got == 0) break;
    send_all(client, data, (size_t)got);
  }
  close(client);
  close(listener);
  return 0;
}

static int ask(const char* moment, const char* filter, int port) {
  const struct sockaddr_in address = loopback(port);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  char sent[kPiece], got[kPiece];
  unsigned state = 1;
  if (fd < 0) fail("socket");
  if (connect(fd, (const struct sockaddr*)&address, sizeof address) != 0) fail("connect");
  if (strcmp(moment, "connected") == 0) install(filter);
  for (int piece = 0; piece < kPieces; ++piece) {
    size_t done = 0;
    for (size_t i = 0; i < sizeof sent; ++i) sent[i] = (char)(state = state * 1103515245 + 12345);
    if (piece % 16 == 1) usleep(3000); /* the other end sleeps meanwhile */
    send_all(fd, sent, sizeof sent);
    while (done < sizeof got) {
      const ssize_t part = recv(fd, got + done, sizeof got - done, 0);
      if (part <= 0) fail("recv");
      done += (size_t)part;
    }
    if (memcmp(sent, got, sizeof sent) != 0) fail("other bytes");
  }
  close(fd);
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 4 && strcmp(argv[1], "exec") == 0) {
    if (strcmp(argv[3], "-") != 0) setenv("LD_PRELOAD", argv[3], 1);
    install(argv[2]);
    execv(argv[4], argv + 4);
    fail("exec");
  }
  if (argc < 4) return 2;
  if (strcmp(argv[2], "start") == 0) install(argv[3]);
  return argv[1][0] == 's' ? serve(argv[2], argv[3]) : ask(argv[2], argv[3], atoi(argv[4]));
}
