package ca

import (
	"crypto/x509"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// files returns the trust anchors, the issuer and its key in PEM.
func (a *Authority) files(t *testing.T) (anchors, cert, key []byte) {
	t.Helper()
	i := a.current.Load()
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	require.NoError(t, err)
	return i.anchors, encode(i.chain[0]), encodeKey(der)
}

// A new issuer replaces the old one, also for the TLS server of the authority. An invalid
// one changes nothing.
func TestReplace(t *testing.T) {
	first, err := New("cluster.local")
	require.NoError(t, err)
	second, err := New("cluster.local")
	require.NoError(t, err)
	anchors1, cert1, key1 := first.files(t)
	anchors2, cert2, key2 := second.files(t)

	a := Empty("cluster.local")
	require.Nil(t, a.TrustAnchors())
	csr, public := request(t)
	_, err = a.Issue(ownName, public)
	require.ErrorIs(t, err, ErrNoIssuer)
	s := &service{authority: a, check: anyone}
	_, err = s.Certify(t.Context(), &pb.CertifyRequest{Identity: ownName, Token: []byte("t"), CertificateSigningRequest: csr})
	require.Equal(t, codes.Unavailable, status.Code(err))
	o, err := a.serverCert(ownName)
	require.NoError(t, err)
	_, err = o.certificate(nil)
	require.ErrorIs(t, err, ErrNoIssuer)

	require.NoError(t, a.Replace(anchors1, cert1, key1))
	issuer := func() string {
		t.Helper()
		chain, err := a.Issue(ownName, public)
		require.NoError(t, err)
		own, err := o.certificate(nil)
		require.NoError(t, err)
		require.Equal(t, chain[1].Raw, own.Certificate[1])
		return string(encode(chain[1]))
	}
	require.Equal(t, string(cert1), issuer())
	require.NoError(t, a.Replace(append(append([]byte{}, anchors1...), anchors2...), cert2, key2))
	require.Equal(t, string(cert2), issuer())

	leaf, err := sign(&x509.Certificate{NotAfter: first.current.Load().chain[0].NotAfter}, first.current.Load().chain[0],
		first.current.Load().key.Public(), first.current.Load().key)
	require.NoError(t, err)
	for want, files := range map[string][3][]byte{
		"the trust anchors do not verify the issuer": {anchors2, cert1, key1},
		"the trust anchors have no certificate":      {[]byte("x"), cert1, key1},
		"private key does not match public key":      {anchors1, cert1, key2},
		"failed to find any PEM data in key":         {anchors1, cert1, nil},
		"must be a CA with the key usage cert sign":  {anchors1, encode(leaf), key1},
		"failed to find any PEM data in certificate": {anchors1, nil, key1},
		"PEM inputs may have been switched":          {anchors1, key1, key1},
	} {
		require.ErrorContains(t, a.Replace(files[0], files[1], files[2]), want)
		require.Equal(t, string(cert2), issuer(), want)
	}
}

// An issuer may be below an intermediate certificate, which clients then receive as well.
func TestReplaceIntermediate(t *testing.T) {
	root, rootKey, err := newCA("root", issuerLife, nil, nil)
	require.NoError(t, err)
	middle := &x509.Certificate{}
	*middle = *root
	middle.MaxPathLen, middle.Subject.CommonName, middle.RawSubject = 1, "middle", nil
	_, middleKey, err := newCA("unused", issuerLife, nil, nil)
	require.NoError(t, err)
	root.MaxPathLen = 2
	root, err = sign(root, root, rootKey.Public(), rootKey)
	require.NoError(t, err)
	middle, err = sign(middle, root, middleKey.Public(), rootKey)
	require.NoError(t, err)
	cert, key, err := newCA("issuer", issuerLife, middle, middleKey)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	a := Empty("")
	require.ErrorContains(t, a.Replace(encode(root), encode(cert), encodeKey(der)), "do not verify")
	require.NoError(t, a.Replace(encode(root), append(encode(cert), encode(middle)...), encodeKey(der)))
	_, public := request(t)
	chain, err := a.Issue("web", public)
	require.NoError(t, err)
	require.Len(t, chain, 3)
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	others.AddCert(chain[1])
	others.AddCert(chain[2])
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, DNSName: "web"})
	require.NoError(t, err)
}
