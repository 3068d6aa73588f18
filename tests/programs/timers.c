/* Works until a handler has counted five SIGALRMs of an interval timer. */
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile sig_atomic_t alarms;

static void count(int signal)
{
	(void)signal;
	alarms++;
}

int main(void)
{
	struct sigaction action = {.sa_handler = count};
	struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
	volatile unsigned long odd = 0, rounds = 0;

	sigaction(SIGALRM, &action, 0);
	setitimer(ITIMER_REAL, &often, 0);
	while (alarms < 5)
		if (rounds++ % 3 == 1)
			odd++;
	setitimer(ITIMER_REAL, &never, 0);
	printf("odd %d\n", odd != 0);
	return 4;
}
