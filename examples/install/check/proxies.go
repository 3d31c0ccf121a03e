package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/inject/injector"
)

// proxies returns the checks on the proxies in ProxyNamespace, or in all namespaces.
func (c *checker) proxies() category {
	const restart = "restart the workloads: kubectl -n NAMESPACE rollout restart deploy"
	// The second check stores the pods here, and the later ones use them.
	var pods, meshed []corev1.Pod
	return category{"linkerd-data-plane", []check{
		{
			description: "data plane namespace exists", fatal: true, hint: "verify the flag -n",
			run: func(ctx context.Context) error {
				if c.ProxyNamespace == "" {
					return nil
				}
				_, err := c.Client.CoreV1().Namespaces().Get(ctx, c.ProxyNamespace, metav1.GetOptions{})
				return err
			},
		},
		{
			description: "data plane proxies exist", fatal: true,
			hint: "set the annotation linkerd.io/inject: enabled of the namespace or the pods, and restart the workloads",
			run: func(ctx context.Context) error {
				all, err := c.Client.CoreV1().Pods(c.ProxyNamespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				// Pods that have ended, or are about to, are not restarted anyway.
				pods = slices.DeleteFunc(all.Items, func(p corev1.Pod) bool {
					return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil
				})
				for _, p := range pods {
					if proxyOf(&p) != nil {
						meshed = append(meshed, p)
					}
				}
				if len(meshed) == 0 {
					return errors.New("no pod has a proxy")
				}
				return nil
			},
		},
		{
			description: "data plane proxies are ready", hint: "read their logs: kubectl -n NAMESPACE logs POD -c linkerd-proxy",
			run: func(context.Context) error { return each(meshed, proxyReady) },
		},
		{
			description: "data plane proxies have the trust anchors of the control plane", warning: true, hint: restart,
			run: func(context.Context) error {
				want := injector.AnchorsSum(string(c.anchors))
				return each(meshed, func(p *corev1.Pod) string {
					// Pods of the control plane have no such annotation.
					if sum, ok := p.Annotations["linkerd.io/trust-root-sha256"]; ok && sum != want {
						return "it has other trust anchors"
					}
					return ""
				})
			},
		},
		{
			description: "data plane proxies have the image of the control plane", warning: true, hint: restart,
			run: func(ctx context.Context) error {
				d, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, "linkerd-proxy-injector", metav1.GetOptions{})
				// Without containers, err is nil, and there is nothing to compare.
				if err != nil || len(d.Spec.Template.Spec.Containers) == 0 {
					return err
				}
				want := d.Spec.Template.Spec.Containers[0].Image
				return each(meshed, func(p *corev1.Pod) string {
					if image := proxyOf(p).Image; image != want {
						return fmt.Sprintf("the image is %s, and that of the control plane %s", image, want)
					}
					return ""
				})
			},
		},
		{
			description: "pods of injected namespaces have a proxy", warning: true, hint: restart,
			run: func(ctx context.Context) error { return c.uninjected(ctx, pods) },
		},
	}}
}

// uninjected returns an error that names pods without a proxy. It checks only namespaces with an
// annotation that requests a proxy. It ignores pods that disable injection or use the host's
// network.
func (c *checker) uninjected(ctx context.Context, pods []corev1.Pod) error {
	enabled := map[string]bool{}
	namespaces, err := c.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	// The annotation on the namespace enables injection for all of its pods.
	for _, n := range namespaces.Items {
		mode := n.Annotations[injector.InjectAnnotation]
		enabled[n.Name] = mode != "" && mode != "disabled"
	}
	return each(pods, func(p *corev1.Pod) string {
		if enabled[p.Namespace] && proxyOf(p) == nil && p.Annotations[injector.InjectAnnotation] != "disabled" && !p.Spec.HostNetwork {
			return "it has no proxy"
		}
		return ""
	})
}

// maxNamed is how many pods an error names.
const maxNamed = 10

// each returns an error that lists pods with their problems, at most maxNamed, or nil if there
// are none. problem describes what is wrong with a pod, or returns "".
func each(pods []corev1.Pod, problem func(*corev1.Pod) string) error {
	var all []string
	// The elements are large, so they are passed by pointer.
	for i := range pods {
		if text := problem(&pods[i]); text != "" {
			all = append(all, pods[i].Namespace+"/"+pods[i].Name+": "+text)
		}
	}
	if n := len(all); n > maxNamed {
		all = append(all[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "\n"))
}

// proxyOf returns the proxy's container in a pod, or nil if there is none.
func proxyOf(p *corev1.Pod) *corev1.Container {
	// A native sidecar is an init container.
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == injector.ProxyName {
				return &containers[i]
			}
		}
	}
	return nil
}

// proxyReady returns "" if the pod's proxy is ready, and otherwise what is wrong.
func proxyReady(p *corev1.Pod) string {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == injector.ProxyName && s.Ready {
			return ""
		}
	}
	return "the proxy is not ready"
}
