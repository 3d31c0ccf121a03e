package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// gateway is the bridge's address. This program sends requests to the proxies from this address.
var gateway = netip.AddrFrom4([4]byte{10, 77, 0, 1}) //nolint:gochecknoglobals // an address cannot be a constant

// bridge is the network device that connects the pods.
const bridge = "wire"

// createNetwork creates a bridge, and a network namespace with a link to the bridge for each pod.
// A pod's default route leads to the bridge. Without a route, a connection to a service's address
// would fail before it is redirected.
func createNetwork(ctx context.Context, pods []pod) error {
	// Without a delay, the bridge forwards at once.
	script := strings.Split(fmt.Sprintf(`ip link set lo up
ip link add %[1]s type bridge forward_delay 0
ip addr add %[2]s/24 dev %[1]s
ip link set %[1]s up`, bridge, gateway), "\n")
	// A veth pair is a cable: one end is at the bridge, and the other one is eth0 in the pod.
	for _, p := range pods {
		script = append(script, strings.Split(fmt.Sprintf(`ip netns add %[1]s
ip link add %[1]s type veth peer name eth0 netns %[1]s
ip link set %[1]s master %[3]s up
ip -n %[1]s link set lo up
ip -n %[1]s addr add %[2]s/24 dev eth0
ip -n %[1]s link set eth0 up
ip -n %[1]s route add default via %[4]s`, p.name, p.addr, bridge, gateway), "\n")...)
	}
	for _, line := range script {
		if _, err := output(command(ctx, pod{}, root, nil, strings.Fields(line)...)); err != nil {
			return err
		}
	}
	for _, p := range pods {
		// As container runtimes do: any user may listen on port 80.
		if _, err := output(command(ctx, p, root, nil, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start")); err != nil {
			return err
		}
	}
	return nil
}
