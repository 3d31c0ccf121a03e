// Package redirect says which rules of iptables lead the TCP connections of a
// pod, or of any network namespace, through a proxy that runs in it.
//
//	           ┌──────────────── network namespace ───────────────┐
//	from       │ PREROUTING → PROXY_INIT_REDIRECT → inbound port  │
//	outside ──▶│   all but ignored ports and subnets              │
//	           │                                                  │
//	to         │ OUTPUT → PROXY_INIT_OUTPUT → outbound port       │
//	outside ◀──│   all but the proxy's own, loopback and ignored  │
//	           └──────────────────────────────────────────────────┘
//
// The kernel keeps where a connection was going; the proxy asks for it by
// SO_ORIGINAL_DST. The rules are those of linkerd's proxy-init, in its order
// and with its comments, so that either can take over from the other.
//
// [Config] says what to redirect, [Rules] makes the commands out of it and of
// what is there already ([Parse]), and [Program] carries them out.
package redirect
