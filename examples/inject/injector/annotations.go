package injector

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// InjectAnnotation is the annotation that determines whether the proxy is added to a pod.
// The value enabled adds the proxy, and disabled prevents it. The value ingress adds a
// proxy in ingress mode.
const InjectAnnotation = "linkerd.io/inject"

// ConfigPrefix is the prefix of the annotations that configure a proxy.
const ConfigPrefix = "config.linkerd.io/"

// options holds the settings for one pod's proxy. The pod's annotations override the defaults
// from [Config].
type options struct {
	proxyImage, initImage, pullPolicy               string
	inbound, outbound, control, admin               int
	uid, gid                                        int
	skipInbound, skipOutbound, skipSubnets          string
	closeWait, waitBeforeExit                       int // seconds
	opaquePorts, requireIdentityPorts, inboundPorts string
	defaultPolicy, logLevel, logFormat, accessLog   string
	inboundConnect, outboundConnect, shutdownGrace  string
	requests, limits                                corev1.ResourceList
	cpuRatio, inboundUnused, outboundUnused         string
	noInboundDetect, noOutboundDetect, hostnames    bool
	gateway                                         bool
	additional                                      []corev1.EnvVar
	externalProfiles, ingress, native, await, tap   bool
	shutdownEndpoint                                bool
}

// options returns the defaults, which are those of linkerd's chart.
func (c Config) options() options {
	return options{
		proxyImage: c.ProxyImage, initImage: c.InitImage, pullPolicy: c.PullPolicy,
		inbound: 4143, outbound: 4140, control: 4190, admin: 4191, uid: 2102, gid: -1,
		skipInbound: "4567,4568", skipOutbound: "4567,4568", opaquePorts: c.OpaquePorts, defaultPolicy: c.DefaultPolicy,
		logLevel: "warn,linkerd=info,hickory=error", logFormat: "plain",
		inboundConnect: "100ms", outboundConnect: "1000ms", inboundUnused: "90s", outboundUnused: "5s",
		native: c.Native, await: true, tap: c.TapAccount != "",
		requests: corev1.ResourceList{}, limits: corev1.ResourceList{},
	}
}

// setters returns a function for each annotation that configures a proxy. The function
// parses the value of the annotation and stores it in o. The key is the annotation without
// its prefix.
func (o *options) setters() map[string]func(string) error {
	// Each helper, such as text or number, returns a function that parses one kind of value.
	return map[string]func(string) error{
		"proxy-image": text(&o.proxyImage), "init-image": text(&o.initImage),
		"proxy-version": tag(&o.proxyImage), "init-image-version": tag(&o.initImage),
		"image-pull-policy": oneOf(&o.pullPolicy, pullPolicies()...),

		"inbound-port": number(&o.inbound, 1, 65535), "outbound-port": number(&o.outbound, 1, 65535),
		"control-port": number(&o.control, 1, 65535), "admin-port": number(&o.admin, 1, 65535),
		"proxy-uid": number(&o.uid, 1, 1<<31-1), "proxy-gid": number(&o.gid, 1, 1<<31-1),

		"skip-inbound-ports": text(&o.skipInbound), "skip-outbound-ports": text(&o.skipOutbound),
		"skip-subnets": text(&o.skipSubnets), "close-wait-timeout": duration(&o.closeWait),

		"opaque-ports": text(&o.opaquePorts), "pod-inbound-ports": text(&o.inboundPorts),
		"proxy-require-identity-inbound-ports": text(&o.requireIdentityPorts),
		"default-inbound-policy":               text(&o.defaultPolicy),

		"proxy-log-level": text(&o.logLevel), "proxy-log-format": oneOf(&o.logFormat, "plain", "json"),
		"access-log": oneOf(&o.accessLog, "apache", "json"),

		"proxy-inbound-connect-timeout":  text(&o.inboundConnect),
		"proxy-outbound-connect-timeout": text(&o.outboundConnect),
		"shutdown-grace-period":          text(&o.shutdownGrace),
		"proxy-wait-before-exit-seconds": number(&o.waitBeforeExit, 0, 3600),

		"proxy-cpu-request": quantity(o.requests, "cpu"), "proxy-cpu-limit": quantity(o.limits, "cpu"),
		"proxy-cpu-ratio-limit": share(&o.cpuRatio), "proxy-additional-env": environment(&o.additional),
		"proxy-inbound-discovery-cache-unused-timeout":   text(&o.inboundUnused),
		"proxy-outbound-discovery-cache-unused-timeout":  text(&o.outboundUnused),
		"proxy-metrics-hostname-labels":                  either(&o.hostnames, "true", "false"),
		"enable-gateway":                                 either(&o.gateway, "true", "false"),
		"proxy-disable-inbound-protocol-detect-timeout":  either(&o.noInboundDetect, "true", "false"),
		"proxy-disable-outbound-protocol-detect-timeout": either(&o.noOutboundDetect, "true", "false"),

		"proxy-memory-request": quantity(o.requests, "memory"), "proxy-memory-limit": quantity(o.limits, "memory"),
		"proxy-ephemeral-storage-request": quantity(o.requests, "ephemeral-storage"),
		"proxy-ephemeral-storage-limit":   quantity(o.limits, "ephemeral-storage"),

		"enable-external-profiles":    either(&o.externalProfiles, "true", "false"),
		"proxy-enable-native-sidecar": either(&o.native, "true", "false"),
		"disable-tap":                 either(&o.tap, "false", "true"),
		"proxy-await":                 either(&o.await, "enabled", "disabled"),
		"proxy-admin-shutdown":        either(&o.shutdownEndpoint, "enabled", "disabled"),
	}
}

// set stores the annotations' values in o. It returns a warning for each annotation with a prefix
// such as [ConfigPrefix], but an unknown name. The error joins the errors of all invalid values.
func (o *options) set(annotations map[string]string) (warnings []string, err error) {
	setters := o.setters()
	var errs []error
	// Sorted, so that warnings have the same order each time.
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ok := configName(key)
		if !ok {
			continue
		}
		// Values that describe what the proxy does anyway need no warning.
		if reason, ok := unsupported()[name]; ok {
			if value := annotations[key]; value != "off" && value != "false" {
				warnings = append(warnings, "annotation "+key+" is ignored, because "+reason)
			}
		} else if setters[name] == nil {
			warnings = append(warnings, "annotation "+key+" is ignored, because it is unknown")
		} else if err := setters[name](annotations[key]); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %q %w", key, annotations[key], err))
		}
	}
	// All of these listen in the same pod.
	ports := []int{o.inbound, o.outbound, o.control, o.admin}
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) < len(ports) {
		errs = append(errs, fmt.Errorf("the ports of the proxy must be different: %v", ports))
	}
	// The annotation that enables the proxy may also select a mode.
	switch mode := annotations[InjectAnnotation]; mode {
	case "", "enabled", "disabled":
	case "ingress":
		o.ingress = true
	default:
		errs = append(errs, fmt.Errorf("annotation %s: %q must be enabled, disabled or ingress", InjectAnnotation, mode))
	}
	return warnings, errors.Join(errs...)
}

// unsupported returns the linkerd annotations that are ignored, with the reason. Their values off
// and false describe what the proxy does.
func unsupported() map[string]string {
	return map[string]string{
		"proxy-log-http-headers": "the proxy logs no header fields",
		"enable-debug-sidecar":   "there is no image for debugging",
	}
}

// configName returns key without its prefix. The prefix of an annotation that configures a
// proxy is [ConfigPrefix], or its alpha or beta variant. For any other annotation, ok is
// false.
func configName(key string) (name string, ok bool) {
	for _, prefix := range []string{ConfigPrefix, "config.alpha.linkerd.io/", "config.beta.linkerd.io/"} {
		if name, ok = strings.CutPrefix(key, prefix); ok {
			return name, true
		}
	}
	return "", false
}

// The functions below return a function that parses the value of an annotation and stores
// it.

// text returns a function that stores a text without spaces around it.
func text(field *string) func(string) error {
	return func(s string) error {
		*field = strings.TrimSpace(s)
		return nil
	}
}

// tag returns a function that replaces the tag or digest of *image, an image's name.
func tag(image *string) func(string) error {
	return func(s string) error {
		// A digest would contradict the tag.
		name, _, _ := strings.Cut(*image, "@")
		// A colon before the last slash belongs to the registry's port.
		if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
			name = name[:i]
		}
		*image = name + ":" + s
		return nil
	}
}

// oneOf returns a function that stores one of values, and rejects all others.
func oneOf(field *string, values ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(values, s) {
			return errors.New("must be " + strings.Join(values, " or "))
		}
		*field = s
		return nil
	}
}

// either returns a function that stores true for yes and false for no, and rejects all others.
func either(field *bool, yes, no string) func(string) error {
	return func(s string) error {
		if s != yes && s != no {
			return fmt.Errorf("must be %s or %s", yes, no)
		}
		*field = s == yes
		return nil
	}
}

// number returns a function that stores a number from low to high.
func number(field *int, low, high int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a number from %d to %d", low, high)
		}
		*field = n
		return nil
	}
}

// duration returns a function that stores a duration as a number of whole seconds.
func duration(field *int) func(string) error {
	return func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 || d%time.Second != 0 {
			return errors.New("must be a duration in whole seconds, such as 60s")
		}
		*field = int(d.Seconds())
		return nil
	}
}

// share returns a function that stores a share between 0 and 1 as text.
func share(field *string) func(string) error {
	return func(s string) error {
		// The negation also rejects NaN.
		if x, err := strconv.ParseFloat(s, 64); err != nil || !(x > 0 && x <= 1) {
			return errors.New("must be a number above 0 and at most 1")
		}
		*field = s
		return nil
	}
}

// environment returns a function that stores a list of environment variables, which is JSON.
func environment(field *[]corev1.EnvVar) func(string) error {
	return func(s string) error {
		var list []corev1.EnvVar
		if err := json.Unmarshal([]byte(s), &list); err != nil {
			return fmt.Errorf(`must be a list such as [{"name":"A","value":"b"}]: %w`, err)
		}
		if slices.ContainsFunc(list, func(e corev1.EnvVar) bool { return e.Name == "" }) {
			return errors.New("must have a name in each element")
		}
		*field = list
		return nil
	}
}

// quantity returns a function that stores an amount of a resource, such as cpu, in list.
func quantity(list corev1.ResourceList, name corev1.ResourceName) func(string) error {
	return func(s string) error {
		q, err := resource.ParseQuantity(s)
		if err != nil || q.Sign() < 0 {
			return errors.New("must be a quantity such as 100m or 64Mi")
		}
		list[name] = q
		return nil
	}
}
