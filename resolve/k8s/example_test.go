package k8s_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/resolve/k8s"
)

// cluster returns a client of a cluster in which port 80 of web is the port of its only Pod. A program makes its client
// by kubernetes.NewForConfig(config), with the config of rest.InClusterConfig.
func cluster(pod netip.AddrPort) *fake.Clientset {
	return fake.NewClientset(
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "prod"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-abc", Namespace: "prod", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(pod.Port()))}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{pod.Addr().String()},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-1"},
			}},
		},
	)
}

// An HTTP client balances over the Pods of a Service.
func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello from web-1") }))
	defer pod.Close()
	client := cluster(netip.MustParseAddrPort(pod.Listener.Addr().String()))
	web := httpclient.New(ctx, "web.prod:80", httpclient.WithResolver(k8s.New(client)))
	rsp, err := (&http.Client{Transport: web}).Get("http://web.prod/")
	if err != nil {
		panic(err)
	}
	defer rsp.Body.Close()
	text, _ := io.ReadAll(rsp.Body)
	fmt.Println(string(text))
	// Output: hello from web-1
}

func ExampleResolver_Resolve() {
	resolver := k8s.New(cluster(netip.MustParseAddrPort("10.0.0.1:8080")))
	for update, err := range resolver.Resolve(context.Background(), "web.prod:80") {
		for _, e := range update.Endpoints {
			fmt.Println(e.Addr, e.Labels["pod"], err)
		}
		break // else it waits for a change
	}
	for _, err := range resolver.Resolve(context.Background(), "web:80") {
		fmt.Println(err)
	}
	// Output:
	// 10.0.0.1:8080 web-1 <nil>
	// k8s: target "web:80": not a name that this resolver resolves: missing namespace: write name.namespace, or use WithNamespace
}
