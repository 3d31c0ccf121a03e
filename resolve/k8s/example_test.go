package k8s_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gotower/gotower/resolve/k8s"
)

// The fake client is a cluster in which port 80 of web is port 8080 of its only Pod.
func ExampleResolver_Resolve() {
	client := fake.NewClientset(
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "prod"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-abc", Namespace: "prod", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.0.0.1"},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-1"},
			}},
		},
	)
	resolver := k8s.New(client)
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
