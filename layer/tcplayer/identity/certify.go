package identity

import (
	"context"
	"errors"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
)

// Run gets the first certificate from the CA that conn leads to, and then
// one after the other, until ctx ends; then it returns nil. It renews a
// certificate after 70 % of the life that it has left, within MinRefresh and
// MaxRefresh. If there is no answer, or none that can be used, it says so to Log
// and asks again after a back-off, while the certificate that is there serves
// until it expires. What has become due while the machine was suspended, or
// because its clock was set, is done within a minute.
//
// An answer is used if the certificate is for our key and our name, those who
// vouch for it lead to the trust anchors, it may be shown by servers and by
// clients, and none of them has expired.
//
// conn is its caller's, who closes it later. It is to fail where it cannot
// connect, as it does unless grpc.WaitForReady is among its default options;
// and, since gRPC waits up to 120 s before it connects again, to have a
// grpc.WithConnectParams that suits Backoff.
//
// It is an error to call it while it runs, or of an Identity that was made by
// [Static].
func (i *Identity) Run(ctx context.Context, conn grpc.ClientConnInterface) error {
	if !i.renews {
		return errors.New("identity: its certificate was given to stay")
	}
	if !i.certifies.CompareAndSwap(false, true) {
		return errors.New("identity: Certify runs already")
	}
	defer i.certifies.Store(false)
	client := pb.NewIdentityClient(conn)
	for ctx.Err() == nil {
		cert, err := i.ask(ctx, client)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			i.await(ctx, i.renewed(cert))
		} else {
			i.await(ctx, i.failed(err))
		}
	}
	return nil
}

// ask gets a certificate, and checks it.
func (i *Identity) ask(ctx context.Context, client pb.IdentityClient) (*certificate, error) {
	token, err := i.cfg.Token()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Timeout)
	defer cancel()
	rsp, err := client.Certify(ctx, &pb.CertifyRequest{Identity: i.cfg.Name, Token: token, CertificateSigningRequest: i.cfg.CSR})
	if err != nil {
		return nil, err
	}
	cert, err := i.accept(rsp)
	if err != nil {
		return nil, &layer.Error{Layer: "identity", Target: i.cfg.Name, Reason: "the answer of the CA is refused", Err: err}
	}
	return cert, nil
}

// renewed puts cert to use, and returns when to ask for the next.
func (i *Identity) renewed(cert *certificate) due {
	life := time.Until(cert.expires)
	wait := min(max(life/10*7, i.cfg.MinRefresh), i.cfg.MaxRefresh)
	next := i.dueIn(wait)
	i.mu.Lock()
	i.refreshes++
	i.failures, i.err, i.next = 0, nil, next
	i.mu.Unlock()
	i.cfg.Instruments.Refreshes.Add(1)
	i.use(cert)
	i.cfg.Log.Info("identity certified", "name", i.cfg.Name, "expires", cert.expires, "renew_in", wait)
	if wait > life {
		i.cfg.Log.Warn("the certificate expires before it is to be renewed",
			"name", i.cfg.Name, "life", life, "min_refresh", i.cfg.MinRefresh)
	}
	return next
}

// failed returns when to ask again.
func (i *Identity) failed(err error) due {
	i.mu.Lock()
	wait := i.cfg.Backoff.Delay(i.failures)
	next := i.dueIn(wait)
	i.failures++
	i.err, i.next = err, next
	i.mu.Unlock()
	expires := "there is none yet"
	if cert := i.current.Load(); cert != nil {
		expires = clock(cert.expires)
	}
	i.cfg.Log.Warn("no new certificate", "name", i.cfg.Name, "error", err, "retry_in", wait, "expires", expires)
	return next
}
