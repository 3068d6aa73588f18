/* Spins in a loop of one direct jump, which makes no packet, until SIGALRM ends it. */
#include <sys/time.h>

#include "start.h"

int main(int argc, char **argv, char **envp)
{
	struct itimerval soon = {{0, 0}, {0, 100000}};

	(void)argc, (void)argv, (void)envp;
	say("spinning\n");
	CALL(setitimer, ITIMER_REAL, &soon, 0, 0);
	for (;;)
		__asm__ volatile("");
}
