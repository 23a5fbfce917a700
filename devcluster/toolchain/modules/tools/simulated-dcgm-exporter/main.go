// Simulated-dcgm-exporter replaces NVIDIA's DCGM exporter on nodes without GPUs.
//
// It has the same environment variables (DCGM_EXPORTER_LISTEN, DCGM_EXPORTER_KUBERNETES, NODE_NAME),
// series and labels, and gets the pod of each GPU from the kubelet's pod resources API (v1). The
// simulated driver is a socket next to the kubelet's (devcluster/nodes/gpus.py).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	kubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	gpusSocket    = "/var/lib/kubelet/pod-resources/simulated-gpus.sock"
	resourceName  = "nvidia.com/gpu"
	xidErrors     = "DCGM_FI_DEV_XID_ERRORS"
	patience      = 5 * time.Second
)

var help = map[string]string{
	"DCGM_FI_DEV_GPU_UTIL":    "GPU utilization (in %). Simulated: of one core, by the processes that have the GPU.",
	"DCGM_FI_DEV_FB_USED":     "Framebuffer memory used (in MiB). Simulated: memory of the processes that have the GPU.",
	"DCGM_FI_DEV_FB_FREE":     "Framebuffer memory free (in MiB). Simulated: the rest of the GPU's.",
	"DCGM_FI_DEV_POWER_USAGE": "Power draw (in W). Simulated: grows with the utilization.",
	xidErrors:                 "Value of the last XID error encountered. Simulated: as it was set.",
}

// gpu is one of the node's, as its maker tells of it.
type gpu struct {
	Index   int                `json:"index"`
	UUID    string             `json:"uuid"`
	Product string             `json:"product"`
	Fields  map[string]float64 `json:"fields"`
}

// exporter looks anew at every scrape.
type exporter struct {
	hostname string
	pods     bool
}

// Describe says nothing: GPUs that a pod has carry more labels than the others.
func (e *exporter) Describe(chan<- *prometheus.Desc) {}

func (e *exporter) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	gpus, err := readGPUs(ctx)
	var owners map[string]prometheus.Labels
	if err == nil && e.pods {
		owners, err = readOwners(ctx)
	}
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, found := range gpus {
		for field, value := range found.Fields {
			labels := e.labels(found, owners[found.UUID])
			if field == xidErrors {
				labels["err_code"] = strconv.Itoa(int(value))
				labels["err_msg"] = "simulated"
			}
			described := prometheus.NewDesc(field, help[field], nil, labels)
			out <- prometheus.MustNewConstMetric(described, prometheus.GaugeValue, value)
		}
	}
}

func (e *exporter) labels(found gpu, owner prometheus.Labels) prometheus.Labels {
	labels := prometheus.Labels{
		"gpu":        strconv.Itoa(found.Index),
		"UUID":       found.UUID,
		"pci_bus_id": fmt.Sprintf("00000000:%02X:00.0", found.Index+1),
		"device":     fmt.Sprintf("nvidia%d", found.Index),
		"modelName":  found.Product,
		"Hostname":   e.hostname,
	}
	maps.Copy(labels, owner)
	return labels
}

// readGPUs asks the node's maker, who answers whoever connects.
func readGPUs(ctx context.Context) ([]gpu, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", gpusSocket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if deadline, set := ctx.Deadline(); set {
		if err := connection.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	var found []gpu
	if err := json.NewDecoder(connection).Decode(&found); err != nil {
		return nil, fmt.Errorf("%s: %w", gpusSocket, err)
	}
	return found, nil
}

// readOwners gives the labels of the container that has a GPU, by the GPU's UUID. Of a GPU that
// several take turns on it is one of them, as of NVIDIA's exporter unless it is told otherwise.
func readOwners(ctx context.Context) (map[string]prometheus.Labels, error) {
	// A connection of its own each time: one that is kept waits longer and longer for a kubelet
	// that was away.
	connection, err := grpc.NewClient(
		"unix:"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	answer, err := podresources.NewPodResourcesListerClient(connection).List(
		ctx, &podresources.ListPodResourcesRequest{},
	)
	if err != nil {
		return nil, err
	}
	owners := map[string]prometheus.Labels{}
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				if devices.GetResourceName() != resourceName {
					continue
				}
				for _, id := range devices.GetDeviceIds() {
					uuid, _, _ := strings.Cut(id, "::")
					owners[uuid] = prometheus.Labels{
						"namespace": pod.GetNamespace(),
						"pod":       pod.GetName(),
						"container": container.GetName(),
					}
				}
			}
		}
	}
	return owners, nil
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	hostname := os.Getenv("NODE_NAME")
	if hostname == "" {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			log.Fatal(err)
		}
	}
	listen := os.Getenv("DCGM_EXPORTER_LISTEN")
	if listen == "" {
		listen = ":9400"
	}
	pods, _ := strconv.ParseBool(os.Getenv("DCGM_EXPORTER_KUBERNETES"))
	registry := prometheus.NewRegistry()
	registry.MustRegister(&exporter{hostname, pods})
	options := promhttp.HandlerOpts{ErrorLog: log.Default()}
	routes := http.NewServeMux()
	routes.Handle("/metrics", promhttp.HandlerFor(registry, options))
	server := &http.Server{Addr: listen, Handler: routes, ReadHeaderTimeout: patience}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	log.Printf("simulated GPUs of %s at %s", hostname, listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
