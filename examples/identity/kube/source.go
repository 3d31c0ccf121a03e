package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// The ConfigMap of the trust anchors, and its key with certificates in PEM.
const (
	AnchorsConfigMap = "linkerd-identity-trust-roots"
	AnchorsKey       = "ca-bundle.crt"
)

// The issuer's files, which are the keys of a Secret of the type kubernetes.io/tls. CertFile is
// the issuer's certificate, followed by intermediate certificates if no trust anchor has signed
// it. KeyFile is the private key.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// filePeriod is the interval at which the issuer's files are read. maxFile is the maximum size of
// a file in bytes.
const (
	filePeriod = 5 * time.Second
	maxFile    = 1 << 20
)

// Source provides the trust anchors from the ConfigMap [AnchorsConfigMap], and the issuer
// from the files [CertFile] and [KeyFile] of a directory, where a Secret is mounted.
type Source struct {
	Client    kubernetes.Interface
	Namespace string // namespace of the ConfigMap
	Dir       string // directory of the files CertFile and KeyFile
	Log       *slog.Logger

	// Replace is called with the first and with each changed content of the ConfigMap and
	// the files, all in PEM. If it returns an error, the error is logged, and the previous
	// content stays in use. Run calls Replace again every 5 s, because a certificate may become valid.
	Replace func(anchors, cert, key []byte) error
}

// content holds the trust anchors and the files that a Source has read, in PEM.
type content struct{ anchors, cert, key []byte }

func (c content) equal(o content) bool {
	return bytes.Equal(c.anchors, o.anchors) && bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key)
}

// Run watches the ConfigMap and the files until ctx ends. It calls s.Replace with their contents
// when both exist, and after each change. If the ConfigMap or a file is removed, the last
// content stays in use. A repeated error is logged once.
func (s *Source) Run(ctx context.Context) {
	// changed carries the trust anchors after each change. watching is closed when the watch has ended.
	changed := make(chan []byte)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.watch(ctx, changed)
	}()
	defer func() { <-watching }()
	ticker := time.NewTicker(filePeriod)
	defer ticker.Stop()
	// loaded is the content in use, and tried the last one that was passed to Replace.
	var loaded, tried content
	// anchors stays nil until the ConfigMap has been read.
	var anchors []byte
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case anchors = <-changed:
		case <-ticker.C:
		}
		next, err := s.read(anchors)
		isRetry := err == nil && next.equal(tried)
		if err == nil {
			// Nothing has changed since the last success.
			if next.equal(loaded) {
				continue
			}
			tried = next
			if err = s.Replace(next.anchors, next.cert, next.key); err == nil {
				s.Log.Info("the issuer and the trust anchors are loaded")
				loaded = next
				logged = ""
				continue
			}
		}
		// A new error is logged, but not one of the same content, whose text may differ by the current time only.
		if !isRetry && err.Error() != logged {
			logged = err.Error()
			s.Log.Error("the issuer and the trust anchors are not loaded: the previous ones stay in use", "err", err)
		}
	}
}

// read reads the files and returns their content, together with anchors.
func (s *Source) read(anchors []byte) (c content, err error) {
	if anchors == nil {
		return c, fmt.Errorf("no ConfigMap %s/%s with the key %s yet", s.Namespace, AnchorsConfigMap, AnchorsKey)
	}
	c.anchors = anchors
	c.cert, err = readFile(filepath.Join(s.Dir, CertFile))
	if err != nil {
		return c, err
	}
	c.key, err = readFile(filepath.Join(s.Dir, KeyFile))
	return c, err
}

// readFile returns the file's content, or an error if it is larger than maxFile.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than allowed shows that the file is too large.
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return data, err
}

// watch watches the ConfigMap until ctx ends. It sends the trust anchors to the channel named
// changed, at first and after each change. If the API server cannot be reached, watch logs the
// error and tries again.
func (s *Source) watch(ctx context.Context, changed chan<- []byte) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // errors are logged by s.Log
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	// only restricts a request to the ConfigMap with the anchors.
	only := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", AnchorsConfigMap).String()
		return o
	}
	informer := cache.NewSharedInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return maps.List(ctx, only(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, only(o))
		},
	}, s.Client), &corev1.ConfigMap{}, 0)
	// send passes the anchors on if o is the ConfigMap that has them.
	send := func(o any) {
		m, ok := o.(*corev1.ConfigMap)
		if !ok || m.Name != AnchorsConfigMap || m.Data[AnchorsKey] == "" {
			return
		}
		select {
		case changed <- []byte(m.Data[AnchorsKey]):
		case <-ctx.Done():
		}
	}
	failed := func(_ context.Context, _ *cache.Reflector, err error) {
		s.Log.Warn("the trust anchors cannot be watched", "config_map", AnchorsConfigMap, "err", err)
	}
	// There is no function for a deletion, because the last anchors stay in use.
	handler := cache.ResourceEventHandlerFuncs{AddFunc: send, UpdateFunc: func(_, now any) { send(now) }}
	_, err := informer.AddEventHandler(handler)
	if err = errors.Join(err, informer.SetWatchErrorHandlerWithContext(failed)); err != nil {
		s.Log.Error("the trust anchors cannot be watched", "err", err)
		return
	}
	informer.RunWithContext(ctx)
}
