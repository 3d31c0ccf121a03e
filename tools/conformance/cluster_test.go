package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The formats of the addresses of Gateways and of pods. The API server rejects endpoints with
// addresses of 127.0.0.0/8.
const (
	gatewayAddress = "198.18.1.%d"
	podAddress     = "198.18.2.%d"
)

// node takes the place of the kubelet and of the controllers of Deployments and
// EndpointSlices.
type node struct {
	client.Client

	program string // the server echo-basic
	pods    map[types.NamespacedName][]pod
	started int // number of pods
}

// pod is a process of echo-basic. The process listens on other ports than the container would,
// because it listens at all addresses. A forwarder listens on each port of the container at
// the address of the pod.
type pod struct {
	labels  map[string]string
	address string
}

// run serves the cluster until ctx ends.
func (n *node) run(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		if err := n.step(ctx, t); err != nil && ctx.Err() == nil {
			t.Log("node:", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (n *node) step(ctx context.Context, t *testing.T) error {
	var deployments appsv1.DeploymentList
	if err := n.List(ctx, &deployments); err != nil {
		return err
	}
	for i := range deployments.Items {
		if d := &deployments.Items[i]; n.pods[client.ObjectKeyFromObject(d)] == nil {
			if err := n.start(ctx, t, d); err != nil {
				return err
			}
		}
	}
	var services corev1.ServiceList
	if err := n.List(ctx, &services); err != nil {
		return err
	}
	for i := range services.Items {
		if err := n.publish(ctx, &services.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// addressing is a transport to the API server that gives each new Gateway an address of its
// own.
type addressing struct {
	http.RoundTripper

	gateways *atomic.Int64
}

func (a *addressing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/gateways") {
		return a.RoundTripper.RoundTrip(req)
	}
	var gateway gatewayv1.Gateway
	err := json.NewDecoder(req.Body).Decode(&gateway)
	req.Body.Close()
	if err != nil {
		return nil, err
	}
	if len(gateway.Spec.Addresses) == 0 {
		gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{
			Type: new(gatewayv1.IPAddressType), Value: fmt.Sprintf(gatewayAddress, a.gateways.Add(1)),
		}}
	}
	text, err := json.Marshal(&gateway)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(bytes.NewReader(text)), int64(len(text)), nil
	return a.RoundTripper.RoundTrip(req)
}

// start starts the processes of a Deployment.
func (n *node) start(ctx context.Context, t *testing.T, d *appsv1.Deployment) error {
	mounts, err := n.mount(ctx, t, d)
	if err != nil {
		return client.IgnoreNotFound(err) // the Secret may follow
	}
	var pods []pod
	for i := range *d.Spec.Replicas {
		name := fmt.Sprintf("%s-pod-%d", d.Name, i) // the tests of weights cut two parts
		n.started++
		p := pod{labels: d.Spec.Template.Labels, address: fmt.Sprintf(podAddress, n.started)}
		env := append(os.Environ(), "POD_NAME="+name, "NAMESPACE="+d.Namespace)
		for _, v := range d.Spec.Template.Spec.Containers[0].Env {
			if v.ValueFrom == nil {
				env = append(env, v.Name+"="+mounts.Replace(v.Value))
			}
		}
		for port, variables := range map[string][]string{"3000": {"HTTP_PORT", "TCP_PORT"}, "3001": {"H2C_PORT"}, "8443": {"HTTPS_PORT", "TLS_PORT"}} {
			to, err := p.forward(ctx, port)
			if err != nil {
				return err
			}
			for _, variable := range variables {
				env = append(env, variable+"="+to)
			}
		}
		cmd := exec.CommandContext(ctx, n.program)
		cmd.Env = env
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() {
			if err := cmd.Wait(); ctx.Err() == nil {
				t.Log(name, "ended", err, output.String())
			}
		}()
		pods = append(pods, p)
		if err := n.report(ctx, d, name, p.address); err != nil {
			return err
		}
	}
	n.pods[client.ObjectKeyFromObject(d)] = pods
	return nil
}

// mount writes the Secrets of the container's volumes to files. The result replaces the paths of
// the mounts by those of the files.
func (n *node) mount(ctx context.Context, t *testing.T, d *appsv1.Deployment) (*strings.Replacer, error) {
	var paths []string
	pod := &d.Spec.Template.Spec
	for _, m := range pod.Containers[0].VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name != m.Name || v.Secret == nil {
				continue
			}
			secret := new(corev1.Secret)
			if err := n.Get(ctx, types.NamespacedName{Namespace: d.Namespace, Name: v.Secret.SecretName}, secret); err != nil {
				return nil, err
			}
			dir := t.TempDir()
			for _, item := range v.Secret.Items {
				if err := os.WriteFile(filepath.Join(dir, item.Path), secret.Data[item.Key], 0o600); err != nil {
					return nil, err
				}
			}
			paths = append(paths, m.MountPath+"/", dir+"/")
		}
	}
	return strings.NewReplacer(paths...), nil
}

// forward forwards the connections to port at the address of p, until ctx ends. It returns
// the port that receives them.
func (p pod) forward(ctx context.Context, port string) (to string, err error) {
	free, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	_, to, _ = net.SplitHostPort(free.Addr().String())
	free.Close()
	l, err := net.Listen("tcp", net.JoinHostPort(p.address, port))
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", "127.0.0.1:"+to)
			if err != nil {
				client.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
				go func() {
					_, _ = io.Copy(to, from)
					to.Close()
				}()
			}
		}
	}()
	return to, nil
}

// report creates the object of a pod, which is ready and has the given address.
func (n *node) report(ctx context.Context, d *appsv1.Deployment, name, address string) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: d.Spec.Template.Labels},
		Spec:       *d.Spec.Template.Spec.DeepCopy(),
	}
	p.Spec.NodeName = "node"
	if err := n.Create(ctx, p); err != nil {
		return err
	}
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return n.Status().Update(ctx, p)
}

// publish writes an EndpointSlice for each pod that the Service selects.
func (n *node) publish(ctx context.Context, s *corev1.Service) error {
	if len(s.Spec.Selector) == 0 || s.DeletionTimestamp != nil {
		return nil
	}
	for key, pods := range maps.All(n.pods) {
		for i, p := range pods {
			if key.Namespace != s.Namespace || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.labels)) {
				continue
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%s-%d", s.Name, key.Name, i), Namespace: s.Namespace,
					Labels:          map[string]string{discoveryv1.LabelServiceName: s.Name},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID}},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{p.address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
			}
			for _, port := range s.Spec.Ports {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
					Name: new(port.Name), Protocol: new(corev1.ProtocolTCP), Port: new(containerPort(port)), AppProtocol: port.AppProtocol,
				})
			}
			if err := n.Create(ctx, slice); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
	}
	return nil
}

// containerPort returns the port of the container of a port of a Service.
func containerPort(p corev1.ServicePort) int32 {
	if p.TargetPort.IntVal != 0 {
		return p.TargetPort.IntVal
	}
	return p.Port
}

// build builds a program and returns its path.
func build(t *testing.T, dir, name, path string) string {
	t.Helper()
	file := t.TempDir() + "/" + name
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, path)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return file
}
