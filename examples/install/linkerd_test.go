package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/install/manifest"
	"github.com/gotower/gotower/internal/kubetest"
)

// runPod creates a pod that is ready, as a cluster's controllers and nodes do.
func (c *cluster) runPod(t *testing.T, namespace, name string, pod corev1.Pod) {
	t.Helper()
	pod.Name = name
	pods := c.client.CoreV1().Pods(namespace)
	created, err := pods.Create(t.Context(), &pod, metav1.CreateOptions{})
	require.NoError(t, err)
	status := func(containers []corev1.Container) (all []corev1.ContainerStatus) {
		for _, container := range containers {
			one := corev1.ContainerStatus{Name: container.Name, Image: container.Image, Ready: true, Started: new(true)}
			if container.Name == "linkerd-init" {
				one.State.Terminated = new(corev1.ContainerStateTerminated)
			} else {
				one.State.Running = new(corev1.ContainerStateRunning)
			}
			all = append(all, one)
		}
		return all
	}
	created.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}},
		Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		InitContainerStatuses: status(created.Spec.InitContainers), ContainerStatuses: status(created.Spec.Containers),
	}
	_, err = pods.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// Linkerd's own command line finds nothing missing. The log has its rows. GOTOWER_LINKERD is the path of the program.
func TestLinkerdCheckProgram(t *testing.T) {
	linkerd := os.Getenv("GOTOWER_LINKERD")
	if linkerd == "" {
		t.Skip("GOTOWER_LINKERD is not set")
	}
	version, err := exec.CommandContext(t.Context(), linkerd, "version", "--client", "--short").Output()
	require.NoError(t, err)
	tag := strings.TrimSpace(string(version))
	image := "registry.example/gotower:" + tag
	manifests := render(t, "-image", image, "-ha")
	c := newCluster(t)
	c.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: app}\n")
	for _, o := range parse(t, manifests) {
		if o.Metadata.Name == injector.AnchorsConfigMap {
			c.runPod(t, "app", "web", injectedPod(t, o.Data[injector.AnchorsKey], image))
		}
	}
	c.apply(t, manifests)
	for _, name := range manifest.Components() {
		c.makeReady(t, name)
		d, err := c.client.AppsV1().Deployments("linkerd").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		c.runPod(t, "linkerd", name+"-5d-1", corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec})
	}
	defer c.runCertificates(t)()
	for _, args := range [][]string{nil, {"--proxy", "-n", "app"}} {
		args = append([]string{
			"check", "--kubeconfig", c.kubeconfig(t, kubetest.Admin), "--expected-version", tag, "--wait", "10s", "-o", "json",
		}, args...)
		out, _ := exec.CommandContext(t.Context(), linkerd, args...).Output() // its status repeats the report
		var report struct {
			Categories []struct {
				Name   string                                        `json:"categoryName"`
				Checks []struct{ Description, Result, Error string } `json:"checks"`
			} `json:"categories"`
		}
		require.NoError(t, json.Unmarshal(out, &report), "%s", out)
		require.NotEmpty(t, report.Categories)
		for _, category := range report.Categories {
			for _, row := range category.Checks {
				t.Logf("%s: %s: %s %s", category.Name, row.Description, row.Result, row.Error)
				assert.Equal(t, "success", row.Result, row.Description)
			}
		}
	}
}
