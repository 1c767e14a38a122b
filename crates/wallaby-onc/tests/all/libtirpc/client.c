/* A client made with rpcgen: says what it hears. Its port, or 0 for what rpcbind says; udp or tcp. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include "cross.h"

static CLIENT *client(const char *network, int port, rpcprog_t program, rpcvers_t version) {
    struct sockaddr_in address;
    struct timeval wait = {1, 0};
    int socket = RPC_ANYSOCK;
    CLIENT *made;
    if (port == 0) {
        made = clnt_create("127.0.0.1", program, version, network);
    } else {
        memset(&address, 0, sizeof address);
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        made = strcmp(network, "udp") ? clnttcp_create(&address, program, version, &socket, 0, 0)
                                      : clntudp_create(&address, program, version, wait, &socket);
    }
    if (made == NULL) {
        clnt_pcreateerror("cannot connect");
        exit(1);
    }
    made->cl_auth = authunix_create_default();
    return made;
}

static void *expect(CLIENT *from, void *result) {
    if (result == NULL) {
        clnt_perror(from, "no result");
        exit(1);
    }
    return result;
}

static void refused(CLIENT *from, rpcproc_t procedure, xdrproc_t codec, void *argument) {
    struct timeval wait = {20, 0};
    enum clnt_stat status;
    struct rpc_err error;
    status = clnt_call(from, procedure, codec, argument, (xdrproc_t) xdr_void, NULL, wait);
    clnt_geterr(from, &error);
    printf("%s", clnt_sperrno(status));
    if (status == RPC_PROGVERSMISMATCH)
        printf(" %u %u", (unsigned) error.re_vers.low, (unsigned) error.re_vers.high);
    printf("\n");
}

int main(int count, char **arguments) {
    const char *network = arguments[1];
    int port = atoi(arguments[2]);
    CLIENT *one = client(network, port, CROSS, CROSS_V1);
    CLIENT *two = client(network, port, CROSS, CROSS_V2);
    char *name = "Ada", *nobody = "nobody";
    person_list second = {{"Charles", 79}, NULL}, first = {{"Ada", 36}, &second};
    people list = &first, next;
    pair numbers = {40, 2};
    block bytes;
    found *who;
    u_int i, size = strcmp(network, "udp") ? 300000 : 8000;

    printf("%s\n", *(char **) expect(one, greet_1(&name, one)));
    for (next = *(people *) expect(one, older_1(&list, one)); next; next = next->next)
        printf("%s is %d\n", next->one.name, next->one.age);
    bytes.bytes.bytes_len = size;
    bytes.bytes.bytes_val = malloc(size);
    for (i = 0; i < size; i++)
        bytes.bytes.bytes_val[i] = i % 251;
    bytes = *(block *) expect(one, reverse_1(&bytes, one));
    for (i = 0; i < size; i++)
        if ((unsigned char) bytes.bytes.bytes_val[i] != (size - 1 - i) % 251)
            break;
    printf("%u of %u bytes\n", i, size);
    who = expect(one, lookup_1(&name, one));
    printf("%d %s\n", who->status, who->found_u.who.name);
    who = expect(one, lookup_1(&nobody, one));
    printf("%d\n", who->status);
    printf("user %u\n", *(u_int *) expect(one, who_1(NULL, one)));
    printf("%d\n", *(int *) expect(two, add_2(&numbers, two)));
    refused(one, 99, (xdrproc_t) xdr_void, NULL);
    refused(one, OLDER, (xdrproc_t) xdr_wrapstring, &name);
    if (port != 0) {
        refused(client(network, port, CROSS, 7), 1, (xdrproc_t) xdr_void, NULL);
        refused(client(network, port, CROSS + 1, 1), 1, (xdrproc_t) xdr_void, NULL);
    }
    return 0;
}
