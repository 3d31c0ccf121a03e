package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/gotower/gotower/examples/pods/wire"
)

// flows stops the capture and returns all flows. A flow is one direction of a connection.
// Later calls return the same flows.
func (r *running) flows(ctx context.Context) ([]wire.Flow, error) {
	if r.captured != nil {
		return r.captured, nil
	}
	// tcpdump writes with a delay. After this connection it has captured all earlier ones.
	// Nothing listens on port 9, which does not matter, because the capture shows the attempt.
	last := netip.AddrPortFrom(r.unmeshedClient.addr, 9)
	if conn, err := new(net.Dialer).DialContext(ctx, "tcp", last.String()); err == nil {
		conn.Close()
	}
	var flows []wire.Flow
	if err := until(ctx, "the end of the capture", func() (bool, error) {
		f, err := os.Open(r.path("wire.pcap"))
		if err != nil {
			return false, err
		}
		defer f.Close()
		flows, err = wire.Read(f)
		return slices.ContainsFunc(flows, func(f wire.Flow) bool { return f.To == last }), err
	}); err != nil {
		return nil, err
	}
	// tcpdump prints a report when it is interrupted.
	if err := r.capture.stop(ctx, syscall.SIGINT); err != nil {
		return nil, err
	}
	if report := r.capture.tail(); !strings.Contains(report, " 0 packets dropped by kernel") {
		return nil, fmt.Errorf("the capture is incomplete:\n%s", report)
	}
	// The flows with gaps would hide what was sent.
	var err error
	for _, f := range flows {
		if f.Lost {
			err = errors.Join(err, fmt.Errorf("%s → %s: the capture is incomplete", f.From, f.To))
		}
	}
	r.captured = flows
	return flows, err
}

// name returns the name of the pod with the address addr, or "this program" if there is none,
// because only this program uses other addresses.
func (r *running) name(addr netip.Addr) string {
	for _, p := range r.pods() {
		if p.addr == addr {
			return p.name
		}
	}
	return "this program"
}

// checkWire verifies that all connections between pods with proxies use TLS, from the first
// byte to the last.
func (r *running) checkWire(ctx context.Context) (string, error) {
	flows, err := r.flows(ctx)
	if err != nil {
		return "", err
	}
	// The addresses of pods with proxies.
	meshed := map[netip.Addr]bool{}
	for _, p := range r.meshed() {
		meshed[p.addr] = true
	}
	connections := 0
	size := 0
	// captured counts the connections by their description.
	captured := map[string]int{}
	for _, f := range flows {
		// The marker is only sent between pods with proxies, so it must always be encrypted.
		if bytes.Contains(f.Data, []byte(encryptedMarker)) {
			return "", fmt.Errorf("%s has the marker", r.describe(f))
		}
		// Other connections may be in cleartext.
		if !meshed[f.From.Addr()] || !meshed[f.To.Addr()] || len(f.Data) == 0 {
			continue
		}
		if !f.TLS() {
			return "", fmt.Errorf("%s is not TLS: %.60q", r.describe(f), f.Data)
		}
		size += len(f.Data)
		// Only the flow from the client has a server name, so each connection counts once.
		if name := f.ServerName(); name != "" {
			connections++
			captured[fmt.Sprintf("%s → %s:%d, TLS for %s", r.name(f.From.Addr()), r.name(f.To.Addr()), f.To.Port(), name)]++
		}
	}
	// With the flag -wire, all connections are printed.
	if r.wire {
		for _, line := range slices.Sorted(maps.Keys(captured)) {
			fmt.Printf("%4d × %s\n", captured[line], line)
		}
	}
	figure := fmt.Sprintf("%d connections, %d KiB, all TLS; the marker: not once", connections, size>>10)
	return figure, r.expected(captured)
}

// expected returns an error unless the capture contains the connections that the other checks
// must have caused, such as one from the client to the controller, each at least once. captured counts
// connections, and its keys describe them as want below.
func (r *running) expected(captured map[string]int) error {
	// With direct, the client's proxy connects to the inbound port of the other proxy, instead of the
	// server's port.
	redis := r.redis.addr.Port()
	if r.redis.direct {
		redis = inboundPort
	}
	api := r.api.addr.Port()
	if r.api.direct {
		api = inboundPort
	}
	for _, c := range []struct {
		from, to pod
		port     uint16
	}{
		{r.client, r.web1, api},
		{r.client, r.control, destinationPort},
		{r.client, r.control, caPort},
		{r.client, r.web1, r.web.addr.Port()},
		{r.client, r.web2, r.echo.addr.Port()},
		{r.client, r.data, redis},
		{r.client, r.data, inboundPort},
	} {
		want := fmt.Sprintf("%s → %s:%d, TLS for %s", c.from.name, c.to.name, c.port, c.to.identity())
		if captured[want] == 0 {
			return fmt.Errorf("%s: not captured, only\n%s", want, strings.Join(slices.Sorted(maps.Keys(captured)), "\n"))
		}
	}
	return nil
}

// describe returns the pods and addresses of a flow, for errors.
func (r *running) describe(f wire.Flow) string {
	return fmt.Sprintf("%s (%s) → %s (%s)", r.name(f.From.Addr()), f.From, r.name(f.To.Addr()), f.To)
}

// checkWireCleartext verifies that the capture contains the request of the pod without a
// proxy in cleartext. This shows that checkWire would detect cleartext.
func (r *running) checkWireCleartext(ctx context.Context) (string, error) {
	flows, err := r.flows(ctx)
	if err != nil {
		return "", err
	}
	requests := 0
	answers := 0
	for _, f := range flows {
		// The response repeats the marker, which is in the URI.
		n := bytes.Count(f.Data, []byte(cleartextMarker))
		switch {
		case f.From.Addr() == r.unmeshedClient.addr:
			requests += n
		case f.To.Addr() == r.unmeshedClient.addr:
			answers += n
		// No other pod may see it.
		case n > 0:
			return "", fmt.Errorf("%s → %s: the marker of %s", f.From, f.To, r.unmeshedClient.name)
		}
	}
	if requests != 1 || answers != 1 {
		return "", fmt.Errorf("the marker in cleartext: %d times in requests and %d in responses, must be once each", requests, answers)
	}
	return "its marker: once in the request, once in the response", nil
}
