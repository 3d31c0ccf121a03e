package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
)

// startProxies starts the proxies and waits until each has obtained a certificate.
func (r *running) startProxies(ctx context.Context) error {
	for _, p := range r.meshed() {
		env, err := r.environment(ctx, p)
		if err != nil {
			return err
		}
		run, err := r.start(p, proxy, "proxy-"+p.name, env, r.proxyProgram(p))
		if err != nil {
			return err
		}
		r.proxies[run.name] = run
	}
	// Connections are not reused, so none stays open after a request.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	// The proxies start at the same time, and then each is awaited.
	for _, p := range r.meshed() {
		url := fmt.Sprintf("http://%s/ready", netip.AddrPortFrom(p.addr, adminPort))
		if err := until(ctx, url, func() (bool, error) {
			return answers(ctx, client, url), r.alive()
		}); err != nil {
			return err
		}
	}
	return nil
}

// proxyProgram returns the path of the program that runs as the proxy in the pod p, which flags
// can set. By default, it is examples/proxy.
func (r *running) proxyProgram(p pod) string {
	if r.isForeign(p) {
		return r.proxy
	}
	return r.bin("proxy")
}

// answers reports whether a request to url succeeds with the status 200.
func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	rsp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer rsp.Body.Close()
	return rsp.StatusCode == http.StatusOK
}

// detectTimeout is how long the proxies wait for a client's first bytes. linkerd's annotations
// that disable the timeout set the same.
const detectTimeout = "365d"

// environment returns the environment variables for the proxy in the pod p. linkerd's injector
// sets variables with the same names. The values are for this cluster, such as its controller's
// address.
func (r *running) environment(ctx context.Context, p pod) ([]string, error) {
	dir, token, err := r.credentials(ctx, p.account, p.name, proxy)
	if err != nil {
		return nil, err
	}
	anchors, err := os.ReadFile(r.anchors())
	if err != nil {
		return nil, err
	}
	destination, ca, name := r.controlPlane(p)
	env := []string{
		fmt.Sprintf("LINKERD2_PROXY_INBOUND_LISTEN_ADDR=0.0.0.0:%d", inboundPort),
		fmt.Sprintf("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR=127.0.0.1:%d", outboundPort),
		fmt.Sprintf("LINKERD2_PROXY_CONTROL_LISTEN_ADDR=0.0.0.0:%d", tapPort),
		fmt.Sprintf("LINKERD2_PROXY_ADMIN_LISTEN_ADDR=0.0.0.0:%d", adminPort),
		"LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT=" + detectTimeout,
		"LINKERD2_PROXY_OUTBOUND_DETECT_TIMEOUT=" + detectTimeout,
		"LINKERD2_PROXY_INBOUND_IPS=" + p.addr.String(),
		"LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION=" + p.opaque,

		"LINKERD2_PROXY_DESTINATION_SVC_ADDR=" + destination,
		"LINKERD2_PROXY_POLICY_SVC_ADDR=" + destination,
		"LINKERD2_PROXY_POLICY_WORKLOAD=" + p.workload(),
		// A proxy asks the controller about all addresses of pods and services, which are in this network.
		"LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS=10.0.0.0/8",
		"LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES=svc.cluster.local.",

		"LINKERD2_PROXY_IDENTITY_SVC_ADDR=" + ca,
		"LINKERD2_PROXY_IDENTITY_DIR=" + dir,
		"LINKERD2_PROXY_IDENTITY_TOKEN_FILE=" + token,
		"LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS=" + string(anchors),
		"LINKERD2_PROXY_IDENTITY_LOCAL_NAME=" + p.identity(),
		"LINKERD2_PROXY_TAP_SVC_NAME=" + identity(tapper),
	}
	// The control plane's own proxy uses no TLS on loopback.
	if name != "" {
		env = append(env, "LINKERD2_PROXY_DESTINATION_SVC_NAME="+name, "LINKERD2_PROXY_POLICY_SVC_NAME="+name,
			"LINKERD2_PROXY_IDENTITY_SVC_NAME="+name)
	}
	return env, nil
}
