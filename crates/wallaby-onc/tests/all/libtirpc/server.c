/* The procedures of a server made with rpcgen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cross.h"

char **greet_1_svc(char **name, struct svc_req *request) {
    static char text[200], *result = text;
    snprintf(text, sizeof text, "Hello %s", *name);
    return &result;
}

people *older_1_svc(people *list, struct svc_req *request) {
    static people result;
    people next;
    result = *list;
    for (next = result; next; next = next->next)
        next->one.age++;
    return &result;
}

block *reverse_1_svc(block *given, struct svc_req *request) {
    static block result;
    u_int i, size = given->bytes.bytes_len;
    free(result.bytes.bytes_val);
    result.bytes.bytes_len = size;
    result.bytes.bytes_val = malloc(size + 1);
    for (i = 0; i < size; i++)
        result.bytes.bytes_val[i] = given->bytes.bytes_val[size - 1 - i];
    return &result;
}

found *lookup_1_svc(char **name, struct svc_req *request) {
    static found result;
    result.status = strcmp(*name, "Ada") ? 2 : 0;
    result.found_u.who.name = "Ada";
    result.found_u.who.age = 36;
    return &result;
}

u_int *who_1_svc(void *nothing, struct svc_req *request) {
    static u_int result;
    if (request->rq_cred.oa_flavor != AUTH_SYS) {
        svcerr_weakauth(request->rq_xprt);
        return NULL;
    }
    result = ((struct authunix_parms *) request->rq_clntcred)->aup_uid;
    return &result;
}

int *add_2_svc(pair *numbers, struct svc_req *request) {
    static int result;
    result = numbers->a + numbers->b;
    return &result;
}
