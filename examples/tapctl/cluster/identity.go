package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	authn "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Identity is a client identity that the proxies in a cluster allow to watch.
type Identity struct {
	*identity.Identity

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	ended  chan struct{}
}

// identityTimeout is how long Identify waits for the certificate.
const identityTimeout = 10 * time.Second

// Identify returns the client identity that p's tap allows to watch. The identity belongs to a
// ServiceAccount. Identify requests a token for this account from the API server, so the user
// needs the right to create it. With the token, Identify gets a certificate from linkerd-identity
// in the namespace controlPlane. It returns an error if p names another namespace, because p must
// not choose a server that receives the token. The certificate is renewed until [Identity.Close],
// even after ctx has ended, because other pods may allow the same identity.
func (c *Cluster) Identify(ctx context.Context, controlPlane string, p Pod) (_ *Identity, err error) {
	// The name has the form ACCOUNT.NAMESPACE.serviceaccount.identity.PLANE.DOMAIN.
	account, domain, ok := strings.Cut(p.TapClient, ".serviceaccount.identity.")
	name, namespace, named := strings.Cut(account, ".")
	switch plane, _, _ := strings.Cut(domain, "."); {
	case !ok || !named:
		return nil, fmt.Errorf("%q is not the name of a ServiceAccount", p.TapClient)
	case plane != controlPlane:
		return nil, fmt.Errorf("its control plane is in the namespace %s and not in %s (-L)", plane, controlPlane)
	}
	// The renewal must not end with ctx, which may belong to one pod.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	// token requests a new token for each certificate, because tokens expire.
	token := func(ctx context.Context) ([]byte, error) {
		const audience = "identity.l5d.io"
		r, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
			&authn.TokenRequest{Spec: authn.TokenRequestSpec{Audiences: []string{audience}}}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return []byte(r.Status.Token), nil
	}
	// Fail early, with the API server's own error, if the user lacks the right.
	if _, err := token(ctx); err != nil {
		return nil, err
	}
	anchors, err := c.anchors(ctx, controlPlane)
	if err != nil {
		return nil, err
	}
	// The key never leaves this process.
	key, csr, err := identity.Request(p.TapClient)
	if err != nil {
		return nil, err
	}
	id, err := identity.New(identity.Config{
		// The first token above was only a test.
		Name: p.TapClient, Roots: anchors, Key: key, CSR: csr, Token: func() ([]byte, error) { return token(running) },
		MinRefresh: c.refresh,
	})
	if err != nil {
		return nil, err
	}
	addr, err := c.authority(ctx, controlPlane, p.Authority)
	if err != nil {
		return nil, err
	}
	// The authority's certificate is verified, but this client has none yet.
	creds := credentials.NewTLS(id.Bootstrap("", p.AuthorityName, "h2"))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	all := &Identity{Identity: id, conn: conn, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(all.ended)
		_ = id.Run(running, conn) // its errors are those of Ready
	}()
	wait, stop := context.WithTimeout(ctx, identityTimeout)
	defer stop()
	if err := id.Ready(wait); err != nil {
		all.Close()
		return nil, fmt.Errorf("linkerd-identity at %s: %w", addr, err)
	}
	return all, nil
}

// Close ends the certificate's renewal.
func (i *Identity) Close() {
	i.cancel()
	<-i.ended
	_ = i.conn.Close()
}

// authority returns the IP address of a ready linkerd-identity pod, with the port from addr,
// which is linkerd-identity's address in the proxies' configuration. Its host name is not used,
// because it can usually be resolved only in the cluster.
func (c *Cluster) authority(ctx context.Context, namespace, addr string) (string, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("the address of linkerd-identity: %w", err)
	}
	list, err := c.client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "linkerd.io/control-plane-component=identity"})
	if err != nil {
		return "", err
	}
	// Any ready pod will do.
	for i := range list.Items {
		if p := newPod(&list.Items[i]); p != nil && p.Ready {
			return net.JoinHostPort(p.IP, port), nil
		}
	}
	return "", errors.New("no pod of linkerd-identity is ready")
}
