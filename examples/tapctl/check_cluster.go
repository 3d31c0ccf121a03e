package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gotower/gotower/examples/tapctl/cluster"
)

// anchorsWarning is the remaining life of a trust anchor below which a check warns, as in
// linkerd.
const anchorsWarning = 60 * 24 * time.Hour

// clusterChecks runs the checks on a cluster and the pods p in it, and yields their findings. It
// stops after a failure that makes the following checks meaningless.
func clusterChecks(ctx context.Context, p *pods) func(yield func(finding) bool) {
	return func(yield func(finding) bool) {
		version, err := p.Cluster.Version(ctx)
		// Each finding has its title first. The error is nil if the check has passed.
		f := finding{what: strings.TrimSpace("the API server " + p.Cluster.Server + " answers " + version), err: err}
		f.advice = "Check the kubeconfig and the context: kubectl cluster-info"
		if !yield(f) || err != nil {
			return
		}
		if f := hasRights(ctx, p); !yield(f) || f.err != nil {
			return
		}
		now, err := p.Cluster.Pods(ctx, p.Resources)
		f = finding{what: "the resources exist: " + strings.Join(p.names(), ", "), err: err, advice: "kubectl get lists the existing ones"}
		// Without any pods, the rest cannot be checked. An error about some resources still leaves others.
		if !yield(f) || now == nil {
			return
		}
		// Only these pods have a tap.
		meshed := slices.DeleteFunc(slices.Clone(now.Of), func(pod cluster.Pod) bool { return !pod.Meshed() })
		// Flags for TLS replace the certificate that tapctl would obtain.
		if !p.secure.given() && !yield(mayIdentify(ctx, p, meshed)) {
			return
		}
		// These checks do not depend on each other, so all of them run.
		for _, find := range []func() finding{
			func() finding { return anchorsValid(ctx, p) },
			func() finding { return allMeshed(p, now.Of) },
			func() finding { return allReady(p, now.Of) },
		} {
			if !yield(find()) {
				return
			}
		}
		if len(meshed) == 0 {
			yield(finding{what: "there is a pod with a proxy", err: errNoPods, advice: adviceInject})
			return
		}
		if yield(certified(ctx, p, meshed)) {
			yield(tapsServe(ctx, p, meshed))
		}
	}
}

// adviceInject tells how pods get a proxy.
const adviceInject = "Inject the workloads and apply them: examples/inject, or the annotation linkerd.io/inject: enabled"

func hasRights(ctx context.Context, p *pods) finding {
	return allowed(ctx, p, "this user may read the pods and their owners", cluster.Rights(p.Resources))
}

// mayIdentify checks the rights that tapctl needs to obtain a client certificate. A missing one
// is only a warning, because some taps do not require a certificate.
func mayIdentify(ctx context.Context, p *pods, meshed []cluster.Pod) finding {
	rights := cluster.IdentityRights(p.controlPlane, meshed)
	f := allowed(ctx, p, "this user may get the trust anchors and a certificate for the taps", rights)
	f.warn = true
	return f
}

// allowed checks the user's rights, and returns a finding with this title. Rights that the user
// lacks are listed in its error.
func allowed(ctx context.Context, p *pods, title string, rights []cluster.Right) finding {
	f := finding{what: title}
	denied, err := p.Cluster.Denied(ctx, rights)
	// err means that the rights could not be checked, and not that they are missing.
	switch {
	case err != nil:
		f.err = err
	case len(denied) > 0:
		names := make([]string, 0, len(denied))
		for _, r := range denied {
			names = append(names, r.String())
		}
		f.err = fmt.Errorf("may not %s", strings.Join(names, ", "))
		f.advice = "Grant these rights: kubectl auth can-i " + names[0]
	}
	return f
}

// anchorsValid checks that none of the control plane's trust anchors has expired or expires soon.
func anchorsValid(ctx context.Context, p *pods) finding {
	f := finding{what: "the trust anchors are valid for 60 days", warn: true}
	anchors, err := p.Cluster.TrustAnchors(ctx, p.controlPlane)
	if err != nil {
		f.err = err
		f.advice = "Without it, proxies have no identity: examples/install"
		return f
	}
	for _, a := range anchors {
		if time.Until(a.NotAfter) < anchorsWarning {
			f.err = fmt.Errorf("%q expires at %s", a.Subject.CommonName, a.NotAfter.UTC().Format(time.RFC3339))
			f.advice = "Add a new trust anchor to the ConfigMap, restart the proxies, and replace the issuer: examples/identity/README.md"
			// An anchor that has expired is an error, and one that will is a warning.
			f.warn = time.Now().Before(a.NotAfter)
		}
	}
	return f
}

// failing returns a finding about a condition, described by title, that each pod in list should
// meet. bad returns true for one that does not. If there are any, the finding's error names them,
// with the given advice.
func failing(p *pods, title, advice string, list []cluster.Pod, bad func(pod cluster.Pod) bool) finding {
	// An unmet condition is only a warning.
	f := finding{what: title, warn: true}
	var names []string
	for _, pod := range list {
		if bad(pod) {
			names = append(names, p.Name(pod))
		}
	}
	if len(names) > 0 {
		f.err = fmt.Errorf("%d of %d do not: %s", len(names), len(list), some(names))
		f.advice = advice
	}
	return f
}

// some returns up to five names, separated by commas, and how many others there are.
func some(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

func allMeshed(p *pods, list []cluster.Pod) finding {
	return failing(p, "all running pods have a proxy", adviceInject, list, func(pod cluster.Pod) bool { return !pod.Meshed() })
}

func allReady(p *pods, list []cluster.Pod) finding {
	return failing(p, "all running pods report that they are ready", "kubectl describe pod shows the reason", list,
		func(pod cluster.Pod) bool { return !pod.Ready })
}

// ofEach calls find for each pod, up to 20 at a time, and returns one finding. find returns an
// error and advice for it, which may be "". If calls fail, the finding names these pods, with the
// first error and its advice, or else the parameter advice.
func ofEach(ctx context.Context, p *pods, title, advice string, list []cluster.Pod, find func(pod cluster.Pod) (string, error)) finding {
	const atOnce = 20
	slots := semaphore.NewWeighted(atOnce)
	// Each goroutine writes only its own element, so no lock is needed.
	errs := make([]error, len(list))
	hints := make([]string, len(list))
	var running sync.WaitGroup
	for i, pod := range list {
		// Acquire fails only if ctx has ended.
		if slots.Acquire(ctx, 1) != nil {
			break
		}
		running.Go(func() {
			defer slots.Release(1)
			hints[i], errs[i] = find(pod)
		})
	}
	running.Wait()
	f := finding{what: title}
	var names []string
	for i, err := range errs {
		if err == nil {
			continue
		}
		// The first error stands for all, because they are usually the same.
		if f.err == nil {
			f.err = err
			f.advice = hints[i]
		}
		names = append(names, p.Name(list[i]))
	}
	if f.err != nil {
		f.err = fmt.Errorf("not of %s: %w", some(names), f.err)
		if f.advice == "" {
			f.advice = advice
		}
	}
	return f
}

// certified checks that the proxies' admin servers answer, and that each proxy with an identity
// has a certificate that has not expired.
func certified(ctx context.Context, p *pods, list []cluster.Pod) finding {
	const advice = "Is the pod network reachable from here?" +
		" The logs of the proxy and of linkerd-identity have the reason of a missing certificate"
	return ofEach(ctx, p, fmt.Sprintf("the certificates of all proxies (%d) are valid", len(list)), advice, list,
		func(pod cluster.Pod) (string, error) {
			expires, err := cluster.CertificateExpiry(ctx, pod)
			// A zero time means that the proxy has no identity, and so no certificate.
			if err == nil && !expires.IsZero() && time.Now().After(expires) {
				err = fmt.Errorf("the certificate expired at %s", expires.UTC().Format(time.RFC3339))
			}
			return "", err
		})
}

// tapsServe checks that the taps of the proxies serve this client.
func tapsServe(ctx context.Context, p *pods, list []cluster.Pod) finding {
	return ofEach(ctx, p, fmt.Sprintf("the taps of all proxies (%d) serve this client", len(list)), "", list,
		func(pod cluster.Pod) (string, error) {
			t, err := p.target(ctx, pod)
			if err != nil {
				return "", err
			}
			// These are the checks that tapctl check HOST:PORT runs, until one of them fails.
			finds := []func() finding{func() finding { return listens(ctx, t) }}
			if t.proof != nil {
				finds = append(finds, func() finding { return proves(ctx, t) })
			}
			conn, err := dial(t)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			for _, find := range append(finds, func() finding { return serves(ctx, t, conn) }) {
				if f := find(); f.err != nil {
					return f.advice, f.err
				}
			}
			// A canceled check has proven nothing.
			return "", ctx.Err()
		})
}
