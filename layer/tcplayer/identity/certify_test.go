package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gotower/gotower/layer"
)

// pause lets time go by, in a bubble, and what happens then happen.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// looks is a context with which Ready only looks.
func looks(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestCertify(t *testing.T) {
	for _, name := range []string{web, spiffe} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuthority(t)
				var asked []time.Duration
				start := time.Now()
				conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
					asked = append(asked, time.Since(start))
					assert.Equal(t, name, req.GetIdentity())
					assert.Equal(t, fmt.Sprint("token ", len(asked)), string(req.GetToken()), "read again for each request")
					return a.answer(req, 24*time.Hour), nil
				})
				defer stop()
				c := a.config(name)
				tokens := 0
				c.Token = func() ([]byte, error) {
					tokens++
					return fmt.Appendf(nil, "token %d", tokens), nil
				}
				var expiration, refreshes number
				c.Instruments = Instruments{Expiration: asGauge{&expiration}, Refreshes: asCounter{&refreshes}}
				i, err := New(c)
				require.NoError(t, err)
				_, err = i.handshakeCertificate()
				require.EqualError(t, err, "identity "+name+": no certificate yet")
				require.ErrorIs(t, i.Ready(looks(t)), context.Canceled)
				require.ErrorContains(t, i.Ready(looks(t)), "no certificate yet")

				end := certifying(t, i, conn)
				require.NoError(t, i.Ready(t.Context()))
				require.NoError(t, i.Ready(looks(t)))
				first, err := i.handshakeCertificate()
				require.NoError(t, err)
				assert.Equal(t, start.Add(24*time.Hour).Unix(), first.Leaf.NotAfter.Unix())
				assert.InDelta(t, float64(start.Add(24*time.Hour).Unix()), expiration.value(), 1)

				synctest.Wait()
				pause(24 * time.Hour)
				second, err := i.handshakeCertificate()
				require.NoError(t, err, "renewed before it expired")
				assert.NotEqual(t, first.Leaf.Raw, second.Leaf.Raw)
				require.Len(t, asked, 2)
				assert.InDelta(t, 0.7*24*3600, asked[1].Seconds(), 2)
				assert.InDelta(t, 2, refreshes.value(), 0)
				end()
				time.Sleep(48 * time.Hour)
				assert.Len(t, asked, 2, "it ended with its context")
				require.NoError(t, i.Ready(looks(t)), "ready is not taken back")
				_, err = i.handshakeCertificate()
				require.ErrorContains(t, err, "the certificate expired at ")
			})
		})
	}
}

func TestRefreshLimits(t *testing.T) {
	for _, tt := range []struct {
		life, min, max, until, want time.Duration
	}{
		{life: time.Hour, want: 42 * time.Minute},
		{life: 12 * time.Second, want: 10 * time.Second},
		{life: 4 * time.Second, want: 10 * time.Second},
		{life: 4 * time.Second, min: time.Second, want: 2800 * time.Millisecond},
		{life: 70 * time.Hour, want: 24 * time.Hour},
		{life: 70 * time.Hour, max: 30 * time.Minute, want: 30 * time.Minute},
		{life: 70 * time.Hour, until: time.Hour, want: 42 * time.Minute},                // ValidUntil of the CA shortens the life
		{life: time.Hour, until: 70 * time.Hour, want: 42 * time.Minute},                // and does not lengthen
		{life: 40 * 24 * time.Hour, max: 40 * 24 * time.Hour, want: 7 * 24 * time.Hour}, // the issuer lives for 10 days
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAuthorityUntil(t, time.Now().Add(10*24*time.Hour))
			var asked []time.Time
			conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
				asked = append(asked, time.Now())
				rsp := a.answer(req, tt.life)
				if tt.until > 0 {
					rsp.ValidUntil = timestamppb.New(time.Now().Add(tt.until))
				}
				return rsp, nil
			})
			defer stop()
			c := a.config(web)
			c.MinRefresh, c.MaxRefresh = tt.min, tt.max
			i, err := New(c)
			require.NoError(t, err)
			end := certifying(t, i, conn)
			pause(tt.want + time.Second/2)
			end()
			require.Len(t, asked, 2, "%+v", tt)
			// Certificates are to the second.
			assert.InDelta(t, tt.want.Seconds(), asked[1].Sub(asked[0]).Seconds(), 1)
		})
	}
}

// Answers that must not be used, each with why.
func TestCertifyRejects(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	key := newKey(t)
	for name, tt := range map[string]struct {
		spoil func(c Config, rsp *pb.CertifyResponse)
		says  string
	}{
		"another key": {func(_ Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(key.Public(), web, time.Hour).Raw
		}, "the certificate is for another key"},
		"another name": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), other, time.Hour).Raw
		}, "the certificate is for " + other + ", not for " + web},
		"a wildcard": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), "*"+web[3:], time.Hour).Raw
		}, "the certificate is for none, not for " + web},
		"the common name alone": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), web, time.Hour, func(c *x509.Certificate) {
				c.Subject.CommonName, c.DNSNames = web, nil
			}).Raw
		}, "the certificate is for none, not for " + web},
		"other roots": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = stranger.leaf(c.Key.Public(), web, time.Hour).Raw
			rsp.IntermediateCertificates = [][]byte{stranger.issuer.Raw}
		}, "certificate signed by unknown authority"},
		"no issuer": {func(_ Config, rsp *pb.CertifyResponse) {
			rsp.IntermediateCertificates = nil
		}, "certificate signed by unknown authority"},
		"expired": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), web, -time.Second).Raw
		}, "certificate has expired or is not yet valid"},
		"of the future": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), web, 2*time.Hour, func(c *x509.Certificate) {
				c.NotBefore = time.Now().Add(time.Hour)
			}).Raw
		}, "certificate has expired or is not yet valid"},
		"expired, as the CA says": {func(_ Config, rsp *pb.CertifyResponse) {
			rsp.ValidUntil = timestamppb.New(time.Now().Add(-time.Hour))
		}, "the certificate from the CA expired at "},
		"for servers alone": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), web, time.Hour, func(c *x509.Certificate) {
				c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			}).Raw
		}, "incompatible key usage"},
		"for clients alone": {func(c Config, rsp *pb.CertifyResponse) {
			rsp.LeafCertificate = a.leaf(c.Key.Public(), web, time.Hour, func(c *x509.Certificate) {
				c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			}).Raw
		}, "incompatible key usage"},
		"nothing": {func(_ Config, rsp *pb.CertifyResponse) { rsp.LeafCertificate = nil }, "the certificate, which must be DER: "},
		"PEM":     {func(_ Config, rsp *pb.CertifyResponse) { rsp.LeafCertificate = a.pem() }, "the certificate, which must be DER: "},
		"a bad issuer": {func(_ Config, rsp *pb.CertifyResponse) {
			rsp.IntermediateCertificates = append(rsp.GetIntermediateCertificates(), []byte("x"))
		}, "intermediate certificate 2, which must be DER: "},
	} {
		t.Run(name, func(t *testing.T) {
			c := a.config(web)
			i, err := New(c)
			require.NoError(t, err)
			good := a.answer(&pb.CertifyRequest{Identity: web, CertificateSigningRequest: c.CSR}, time.Hour)
			_, err = i.accept(good)
			require.NoError(t, err)
			tt.spoil(c, good)
			_, err = i.accept(good)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

// A failure is logged and retried. The current certificate stays in use.
func TestCertifyContinuesAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stranger := newAuthority(t), newAuthority(t)
		const fine, refuse, bad, silent = "fine", "refuse", "bad", "silent"
		var how, noToken atomic.Value // a timer of the bubble orders nothing for the race detector
		var asked atomic.Int64
		how.Store(refuse)
		conn, stop := serveCA(t, func(ctx context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			asked.Add(1)
			switch how.Load() {
			case refuse:
				return nil, status.Error(codes.FailedPrecondition, "no such token")
			case bad:
				return stranger.answer(req, time.Hour), nil
			case silent:
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return a.answer(req, time.Hour), nil
		})
		defer stop()
		var logged bytes.Buffer
		c := a.config(web)
		c.Backoff = layer.Backoff{Min: time.Second, Max: 4 * time.Second}
		c.Log = slog.New(slog.NewTextHandler(&logged, nil))
		noToken.Store("")
		c.Token = func() ([]byte, error) {
			if why := noToken.Load().(string); why != "" {
				return nil, errors.New(why)
			}
			return []byte("secret"), nil
		}
		i, err := New(c)
		require.NoError(t, err)
		end := certifying(t, i, conn)
		defer end()
		synctest.Wait()
		require.ErrorContains(t, i.Run(t.Context(), conn), "Run is already running")

		pause(8 * time.Second) // 0, 1, 3, 7
		assert.EqualValues(t, 4, asked.Load())
		err = i.Ready(looks(t))
		require.ErrorContains(t, err, "no certificate yet: rpc error: code = FailedPrecondition desc = no such token")
		assert.Contains(t, i.Describe().String(), "failures=4 error=rpc error")
		how.Store(bad)
		pause(4 * time.Second) // 11
		assert.EqualValues(t, 5, asked.Load())
		require.ErrorContains(t, i.Ready(looks(t)), "invalid response of the CA: x509: certificate signed by unknown authority")
		noToken.Store("the token is gone")
		pause(4 * time.Second) // 15
		assert.EqualValues(t, 5, asked.Load())
		require.ErrorContains(t, i.Ready(looks(t)), "the token is gone")
		how.Store(fine)
		noToken.Store("")
		pause(4 * time.Second) // 19
		require.NoError(t, i.Ready(looks(t)))
		assert.NotContains(t, i.Describe().String(), "error=")

		// The next is due after 42 minutes. It does not come.
		how.Store(silent)
		pause(45 * time.Minute)
		first, err := i.handshakeCertificate()
		require.NoError(t, err)
		assert.Contains(t, i.Describe().String(), "code = DeadlineExceeded")
		how.Store(fine)
		pause(c.Backoff.Max + 10*time.Second)
		second, err := i.handshakeCertificate()
		require.NoError(t, err)
		assert.NotEqual(t, first.Leaf.Raw, second.Leaf.Raw)

		how.Store(refuse)
		pause(time.Hour)
		_, err = i.handshakeCertificate()
		require.ErrorContains(t, err, "the certificate expired at ")
		require.ErrorContains(t, err, "no such token")
		how.Store(fine)
		pause(c.Backoff.Max)
		_, err = i.handshakeCertificate()
		require.NoError(t, err)
		assert.Contains(t, logged.String(), "no new certificate")
		assert.NotContains(t, logged.String(), "secret")
	})
}

func TestCertifyContextEndsDuringRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		conn, stop := serveCA(t, func(ctx context.Context, _ *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		defer stop()
		i, err := New(a.config(web))
		require.NoError(t, err)
		end := certifying(t, i, conn)
		synctest.Wait()
		start := time.Now()
		end()
		assert.Zero(t, time.Since(start))
		assert.NotContains(t, i.Describe().String(), "error=", "the end of its context is not a failure")
		end = certifying(t, i, conn) // and it may begin again
		synctest.Wait()
		end()
	})
}

// A warning is logged for a certificate that expires before its renewal.
func TestCertifyWarnsOfShortLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			return a.answer(req, 5*time.Second), nil
		})
		defer stop()
		var logged bytes.Buffer
		c := a.config(web)
		c.Log = slog.New(slog.NewTextHandler(&logged, nil))
		i, err := New(c)
		require.NoError(t, err)
		end := certifying(t, i, conn)
		require.NoError(t, i.Ready(t.Context()))
		synctest.Wait()
		end()
		assert.Contains(t, logged.String(), "the certificate expires before it is to be renewed")
	})
}

func TestDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			return a.answer(req, 100*time.Hour), nil
		})
		defer stop()
		i, err := New(a.config(spiffe))
		require.NoError(t, err)
		assert.Equal(t, "identity   name="+spiffe+" server_name=web.default refreshes=0\n", i.Describe().String())
		end := certifying(t, i, conn)
		require.NoError(t, i.Ready(t.Context()))
		synctest.Wait()
		assert.Equal(t, "identity   name="+spiffe+" server_name=web.default expires=2000-01-05T04:00:00Z refreshes=1 renew_in=24h0m0s\n",
			i.Describe().String())
		end()
		assert.Equal(t, spiffe, i.Name())
		assert.Equal(t, "web.default", i.ServerName())
		require.ErrorContains(t, a.static(web).Run(t.Context(), conn), "does not support a Static identity")
	})
}
