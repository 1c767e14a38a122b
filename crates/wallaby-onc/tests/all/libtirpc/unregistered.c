/* Serves the procedures at ports that are free, without rpcbind, and says which. */
#include <stdio.h>
#include <stdlib.h>
#include "cross.h"

void cross_1(struct svc_req *, SVCXPRT *);
void cross_2(struct svc_req *, SVCXPRT *);

int main(void) {
    SVCXPRT *udp = svcudp_create(RPC_ANYSOCK), *tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
    if (udp == NULL || tcp == NULL)
        return 1;
    if (!svc_register(udp, CROSS, CROSS_V1, cross_1, 0) || !svc_register(tcp, CROSS, CROSS_V1, cross_1, 0)
        || !svc_register(udp, CROSS, CROSS_V2, cross_2, 0) || !svc_register(tcp, CROSS, CROSS_V2, cross_2, 0))
        return 1;
    printf("%d %d\n", udp->xp_port, tcp->xp_port);
    fflush(stdout);
    svc_run();
    return 1;
}
