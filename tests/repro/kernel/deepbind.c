// VirtualGL#39, snmalloc#595: a plug-in that is opened with RTLD_DEEPBIND resolves libc's functions before a preload's. It uses the program's socket.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>
#include <sys/socket.h>
#include <netinet/in.h>
int main(int argc,char**argv){void*h=dlopen(argv[1],RTLD_NOW|RTLD_DEEPBIND);if(!h){puts(dlerror());return 2;}
int(*put)(int,const char*,int)=dlsym(h,"put");
int l=socket(AF_INET,SOCK_STREAM,0);struct sockaddr_in n={.sin_family=AF_INET,.sin_addr.s_addr=htonl(INADDR_LOOPBACK)};socklen_t z=sizeof n;
bind(l,(void*)&n,z);listen(l,8);getsockname(l,(void*)&n,&z);int c=socket(AF_INET,SOCK_STREAM,0);connect(c,(void*)&n,z);int s=accept(l,0,0);
errno=0;int w=put(c,"hello",5);int e=errno;char b[9]={0};struct pollfd p={s,POLLIN};poll(&p,1,60000);int k=recv(s,b,8,MSG_DONTWAIT);
printf("%s plug-in's write %d (%s), read %d\n",w==5&&k==5?"OK":"WRONG",w,strerror(e),k);fflush(stdout);_exit(0);}
