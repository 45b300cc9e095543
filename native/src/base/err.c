/* err.c - the sentence about the last error, one buffer per thread. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[512];

int pn_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return -code;
}

PN_API const char *pn_error_message(void)
{
    return message;
}
