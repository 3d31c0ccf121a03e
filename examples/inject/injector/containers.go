package injector

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gotower/gotower/examples/init/redirect"
	"github.com/gotower/gotower/examples/proxy/settings"
)

// Names of the containers and volumes that are added to a pod. TokenAudience is the audience of
// the token that the proxy exchanges for a certificate.
const (
	ProxyName     = "linkerd-proxy"
	initName      = "linkerd-init"
	identityName  = "linkerd-identity-end-entity"
	tokenName     = "linkerd-identity-token"
	lockName      = "linkerd-proxy-init-xtables-lock"
	TokenAudience = "identity.l5d.io" //nolint:gosec // not a credential
)

// Paths in the proxy's container, and the lifetime of its token in seconds.
const (
	identityDir   = "/var/run/linkerd/identity/end-entity"
	tokenDir      = "/var/run/secrets/tokens" //nolint:gosec // a directory
	tokenFile     = "linkerd-identity-token"
	tokenLifetime = 24 * 60 * 60
)

// redirection returns the rules by which the init container redirects connections to the proxy,
// or an error if an option is invalid.
func (o *options) redirection() (redirect.Config, error) {
	// Connections to these ports must reach the proxy itself.
	proxyPorts := fmt.Sprintf("%d,%d", o.control, o.admin)
	c := redirect.Config{
		IncomingPort: o.inbound, OutgoingPort: o.outbound, UID: o.uid, GID: o.gid,
		InboundIgnore: list(proxyPorts + "," + o.skipInbound), OutboundIgnore: list(o.skipOutbound), SubnetsToIgnore: list(o.skipSubnets),
	}
	// Invalid ports are reported together with all other mistakes.
	_, badIn := redirect.Ports(c.InboundIgnore)
	_, badOut := redirect.Ports(c.OutboundIgnore)
	return c, errors.Join(append(append(badIn, badOut...), c.Validate())...)
}

// initContainer returns the container that redirects the pod's connections.
func (o *options) initContainer(c Config, rules redirect.Config) corev1.Container {
	args := []string{
		"--iptables-mode", c.IptablesMode, "--ipv6=" + strconv.FormatBool(c.IPv6),
		"--incoming-proxy-port", strconv.Itoa(rules.IncomingPort), "--outgoing-proxy-port", strconv.Itoa(rules.OutgoingPort),
		"--proxy-uid", strconv.Itoa(rules.UID), "--inbound-ports-to-ignore", strings.Join(rules.InboundIgnore, ","),
	}
	// A group of 0 or less means none.
	if rules.GID > 0 {
		args = append(args, "--proxy-gid", strconv.Itoa(rules.GID))
	}
	if len(rules.OutboundIgnore) > 0 {
		args = append(args, "--outbound-ports-to-ignore", strings.Join(rules.OutboundIgnore, ","))
	}
	if len(rules.SubnetsToIgnore) > 0 {
		args = append(args, "--subnets-to-ignore", strings.Join(rules.SubnetsToIgnore, ","))
	}
	if o.closeWait > 0 {
		args = append(args, "--timeout-close-wait-secs", strconv.Itoa(o.closeWait))
	}
	resources := corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("20Mi")}
	return corev1.Container{
		Name: initName, Image: o.initImage, ImagePullPolicy: corev1.PullPolicy(o.pullPolicy),
		Command: []string{"/init"}, Args: args,
		Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), RunAsNonRoot: new(false), ReadOnlyRootFilesystem: new(true),
			// A write to a sysctl requires a privileged container.
			Privileged: new(o.closeWait > 0), AllowPrivilegeEscalation: new(o.closeWait > 0),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"},
			},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts:             []corev1.VolumeMount{{Name: lockName, MountPath: "/run"}},
	}
}

func (o *options) proxyContainer(c Config, env []corev1.EnvVar) corev1.Container {
	// probe returns a probe of the proxy's admin server.
	probe := func(path string, delay, period int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(o.admin)}},
			// A slow node must not restart the proxies of all its pods.
			InitialDelaySeconds: delay, PeriodSeconds: period, TimeoutSeconds: 1, FailureThreshold: 3,
		}
	}
	p := corev1.Container{
		Name: ProxyName, Image: o.proxyImage, ImagePullPolicy: corev1.PullPolicy(o.pullPolicy), Command: []string{"/proxy"}, Env: env,
		Ports: []corev1.ContainerPort{
			{Name: "linkerd-proxy", ContainerPort: int32(o.inbound)}, {Name: "linkerd-admin", ContainerPort: int32(o.admin)},
		},
		LivenessProbe: probe("/live", 10, 10), ReadinessProbe: probe("/ready", 2, 10),
		Resources: corev1.ResourceRequirements{Requests: o.requests, Limits: o.limits},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(o.uid)), RunAsNonRoot: new(true), ReadOnlyRootFilesystem: new(true),
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if o.gid > 0 {
		p.SecurityContext.RunAsGroup = new(int64(o.gid))
	}
	if c.TrustAnchors != "" {
		p.VolumeMounts = []corev1.VolumeMount{{Name: identityName, MountPath: identityDir}, {Name: tokenName, MountPath: tokenDir}}
	}
	p.Lifecycle = o.lifecycle()
	if o.native {
		// An init container that always restarts is a native sidecar.
		p.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		// The init containers that follow start when the proxy is ready.
		p.StartupProbe = probe("/ready", 0, 1) // each second, from the start
		p.StartupProbe.FailureThreshold = 120
	}
	return p
}

// lifecycle returns the proxy's lifecycle hooks, or nil if there are none. The postStart hook
// holds back the following containers until the proxy is ready. A native sidecar does not need
// it, because its startup probe has the same effect.
func (o *options) lifecycle() *corev1.Lifecycle {
	l := new(corev1.Lifecycle)
	if o.await && !o.native {
		l.PostStart = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"/proxy", "await", "127.0.0.1:" + strconv.Itoa(o.admin), "2m"},
		}}
	}
	if o.waitBeforeExit > 0 {
		l.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(o.waitBeforeExit)}}
	}
	// Kubernetes rejects an empty lifecycle.
	if *l == (corev1.Lifecycle{}) {
		return nil
	}
	return l
}

// volumes returns the volumes that the added containers mount.
func volumes(c Config) []corev1.Volume {
	lock := corev1.Volume{Name: lockName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	// Without an identity, the proxy needs no token and no key.
	if c.TrustAnchors == "" {
		return []corev1.Volume{lock}
	}
	return []corev1.Volume{
		lock,
		{Name: identityName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: tokenName, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: TokenAudience, ExpirationSeconds: new(int64(tokenLifetime)), Path: tokenFile,
			}}},
		}}},
	}
}

// environ returns the proxy's environment variables. containers are the pod's other containers,
// whose port numbers some of the variables contain.
func (o *options) environ(c Config, containers []container) []corev1.EnvVar {
	// field returns a variable whose value comes from a field of the pod.
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	// These variables come first, because others refer to them by $(name).
	env := []corev1.EnvVar{
		field("_pod_name", "metadata.name"), field("_pod_ns", "metadata.namespace"), field("_pod_nodeName", "spec.nodeName"),
		field("_pod_sa", "spec.serviceAccountName"),
	}
	// set adds a variable of the proxy, unless the value is empty and the default applies.
	set := func(name, value string) {
		if value != "" {
			env = append(env, corev1.EnvVar{Name: settings.Prefix + name, Value: value})
		}
	}
	// With IPv6, listeners on all addresses also accept IPv4.
	all := "0.0.0.0"
	loopback := "127.0.0.1:" + strconv.Itoa(o.outbound)
	if c.IPv6 {
		all = "[::]"
		loopback += ",[::1]:" + strconv.Itoa(o.outbound)
	}
	set("CORES", strconv.FormatInt(wholeCores(o.requests), 10))
	// A limit of 0 means none.
	if n := wholeCores(o.limits); !o.limits.Cpu().IsZero() {
		set("CORES_MAX", strconv.FormatInt(n, 10))
	}
	set("CORES_MAX_RATIO", o.cpuRatio)
	set("LOG", o.logLevel)
	set("LOG_FORMAT", o.logFormat)
	set("ACCESS_LOG", o.accessLog)
	set("OUTBOUND_LISTEN_ADDRS", loopback)
	set("INBOUND_LISTEN_ADDR", fmt.Sprintf("%s:%d", all, o.inbound))
	set("CONTROL_LISTEN_ADDR", fmt.Sprintf("%s:%d", all, o.control))
	set("ADMIN_LISTEN_ADDR", fmt.Sprintf("%s:%d", all, o.admin))
	env = append(env, field(settings.Prefix+"INBOUND_IPS", "status.podIPs"))
	set("INBOUND_PORTS", o.ports(containers))
	set("INBOUND_DEFAULT_POLICY", o.defaultPolicy)
	set("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", named(o.opaquePorts, containers))
	set("INBOUND_PORTS_REQUIRE_IDENTITY", named(o.requireIdentityPorts, containers))
	set("OUTBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", c.OpaquePorts)
	set("INBOUND_CONNECT_TIMEOUT", o.inboundConnect)
	set("OUTBOUND_CONNECT_TIMEOUT", o.outboundConnect)
	set("INBOUND_DISCOVERY_IDLE_TIMEOUT", o.inboundUnused)
	set("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", o.outboundUnused)
	// There is no way to turn the timeout off, so it is a year.
	if o.noInboundDetect {
		set("INBOUND_DETECT_TIMEOUT", "365d")
	}
	if o.noOutboundDetect {
		set("OUTBOUND_DETECT_TIMEOUT", "365d")
	}
	// The values are those of linkerd's chart.
	for _, direction := range []string{"INBOUND", "OUTBOUND"} {
		set(direction+"_ACCEPT_KEEPALIVE", "10000ms")
		set(direction+"_CONNECT_KEEPALIVE", "10000ms")
		set(direction+"_ACCEPT_USER_TIMEOUT", "30s")
		set(direction+"_CONNECT_USER_TIMEOUT", "30s")
		set(direction+"_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "10s")
		set(direction+"_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", "3s")
	}
	// Profiles exist for Services only, unless external ones are enabled.
	suffix := "svc." + c.ClusterDomain + "."
	if o.externalProfiles {
		suffix = "."
	}
	if o.hostnames {
		set("OUTBOUND_METRICS_HOSTNAME_LABELS", "true")
	}
	set("DESTINATION_PROFILE_SUFFIXES", suffix)
	set("DESTINATION_PROFILE_NETWORKS", c.ClusterNetworks)
	// Kubernetes replaces the variables in parentheses.
	set("DESTINATION_CONTEXT", `{"ns":"$(_pod_ns)","nodeName":"$(_pod_nodeName)","pod":"$(_pod_name)"}`)
	set("POLICY_CLUSTER_NETWORKS", c.ClusterNetworks)
	set("POLICY_WORKLOAD", `{"ns":"$(_pod_ns)","pod":"$(_pod_name)"}`)
	set("CONTROL_STREAM_INITIAL_TIMEOUT", "3s")
	set("CONTROL_STREAM_IDLE_TIMEOUT", "5m")
	set("CONTROL_STREAM_LIFETIME", "1h")
	set("SHUTDOWN_GRACE_PERIOD", o.shutdownGrace)
	if o.shutdownEndpoint {
		set("SHUTDOWN_ENDPOINT_ENABLED", "true")
	}
	if o.ingress {
		set("INGRESS_MODE", "true")
	}
	if o.gateway {
		set("INBOUND_GATEWAY_SUFFIXES", suffix)
	}
	env = append(env, o.controlEnviron(c)...)
	for _, e := range o.additional { // may also override a variable
		env = append(slices.DeleteFunc(env, func(old corev1.EnvVar) bool { return old.Name == e.Name }), e)
	}
	return env
}

// wholeCores returns the processors in resources as a whole number, rounded up, and at least 1.
func wholeCores(resources corev1.ResourceList) int64 { return max(1, resources.Cpu().Value()) }

// controlEnviron returns the environment variables for the control plane's servers, for the
// proxy's identity, and for tap.
func (o *options) controlEnviron(c Config) (env []corev1.EnvVar) {
	// set adds a variable of the proxy.
	set := func(name, value string) { env = append(env, corev1.EnvVar{Name: settings.Prefix + name, Value: value}) }
	// server adds the address of a server of the control plane and, with TLS, its identity.
	server := func(name, addr, service string, port int, account string) {
		if c.Controller && port == DestinationPort {
			set(name+"_SVC_ADDR", fmt.Sprintf("localhost.:%d", port)) // inside the pod, so without a proxy and TLS
			return
		}
		set(name+"_SVC_ADDR", cmp.Or(addr, fmt.Sprintf("%s.%s.svc.%s.:%d", service, c.Namespace, c.ClusterDomain, port)))
		if c.TrustAnchors != "" {
			set(name+"_SVC_NAME", c.identity(account, c.Namespace))
		}
	}
	server("DESTINATION", c.DestinationAddr, "linkerd-dst-headless", DestinationPort, "linkerd-destination")
	server("POLICY", cmp.Or(c.PolicyAddr, c.DestinationAddr), "linkerd-dst-headless", DestinationPort, "linkerd-destination")
	if c.TrustAnchors == "" {
		return env
	}
	server("IDENTITY", "", "linkerd-identity-headless", IdentityPort, "linkerd-identity")
	set("IDENTITY_DIR", identityDir)
	// The controller's own pod exists before its trust anchors are known, so they come from a ConfigMap.
	anchors := corev1.EnvVar{Name: settings.Prefix + "IDENTITY_TRUST_ANCHORS", Value: c.TrustAnchors}
	if c.Controller {
		anchors.Value = ""
		anchors.ValueFrom = &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: AnchorsConfigMap}, Key: AnchorsKey,
		}}
	}
	env = append(env, anchors)
	set("IDENTITY_TOKEN_FILE", tokenDir+"/"+tokenFile)
	set("IDENTITY_LOCAL_NAME", c.identity("$(_pod_sa)", "$(_pod_ns)"))
	// The proxy makes its key when it starts.
	env = append(env, corev1.EnvVar{Name: settings.OwnPrefix + "IDENTITY_GENERATE", Value: "true"})
	if o.tap {
		// An account without a namespace is that of the control plane.
		account, namespace, _ := strings.Cut(c.TapAccount, ".")
		set("TAP_SVC_NAME", c.identity(account, cmp.Or(namespace, c.Namespace)))
	} else {
		set("TAP_DISABLED", "true")
	}
	return env
}

// Ports that the control plane's servers listen on.
const (
	DestinationPort = 8086
	IdentityPort    = 8080
)

// checkEnviron returns the error that the proxy would report for the environment env; warnings
// count too. anchors are the trust anchors in PEM, because env may contain only a reference to
// their ConfigMap.
func checkEnviron(env []corev1.EnvVar, anchors string) error {
	values := map[string]string{}
	for _, e := range env {
		// The values that Kubernetes will fill in are replaced by valid ones.
		values[e.Name] = e.Value
		if e.ValueFrom != nil {
			values[e.Name] = "a"
		}
		switch e.Name {
		case settings.Prefix + "INBOUND_IPS":
			values[e.Name] = netip.IPv4Unspecified().String()
		case settings.Prefix + "IDENTITY_TRUST_ANCHORS":
			values[e.Name] = anchors
		}
		// Only earlier variables are replaced, as in Kubernetes.
		for name, value := range values {
			values[e.Name] = strings.ReplaceAll(values[e.Name], "$("+name+")", value)
		}
	}
	s, err := settings.Read(func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	})
	// A warning means that a value has no effect, which is a mistake here.
	if err == nil && len(s.Warnings) > 0 {
		err = errors.New(strings.Join(s.Warnings, "; "))
	}
	return err
}

// container holds those fields of a container that determine settings for its proxy.
type container struct {
	Ports []struct {
		Name          string      `json:"name"`
		ContainerPort json.Number `json:"containerPort"`
		Protocol      string      `json:"protocol"`
	} `json:"ports"`
}

// ports returns the pod's inbound ports, separated by commas: the annotation pod-inbound-ports if
// it is set, and otherwise all TCP ports of containers.
func (o *options) ports(containers []container) string {
	// The annotation replaces the ports of the containers.
	if o.inboundPorts != "" {
		return o.inboundPorts
	}
	var ports []string
	for _, c := range containers {
		for _, p := range c.Ports {
			// A missing protocol means TCP.
			if port := p.ContainerPort.String(); (p.Protocol == "" || p.Protocol == "TCP") && port != "" && !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		}
	}
	return strings.Join(ports, ",")
}

// named replaces the names of container ports in ports by the ports' numbers, and returns the
// result. ports is a list separated by commas.
func named(ports string, containers []container) string {
	all := list(ports)
	for i, name := range all {
		for _, c := range containers {
			for _, p := range c.Ports {
				// Numbers are not the name of any port, and stay.
				if p.Name == name && name != "" {
					all[i] = p.ContainerPort.String()
				}
			}
		}
	}
	return strings.Join(all, ",")
}

// list returns the parts of a list that is separated by commas. Empty parts are left out.
func list(text string) (parts []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			parts = append(parts, item)
		}
	}
	return parts
}
