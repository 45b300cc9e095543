/* stack.h - what PROCSIG_LOG_STACK calls, a function of the host's: pn_adopt_stack_printer(). */
#ifndef PN_STACK_H
#define PN_STACK_H

int pn_stack_keep_disposition(int signo);
int pn_stack_adopt_printer(int signo);
/* Our stack was asked for.  Async-signal-safe. */
void pn_stack_print(void);

#endif
