// Command volcano is Volcano's scheduler, controller manager or webhook manager, depending on the name
// by which it is started. They share most packages, so that one file is half as large as three.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/config"
	leaderelection "k8s.io/component-base/config/options"
	"k8s.io/klog/v2"
	controllers "volcano.sh/volcano/cmd/controller-manager/app"
	controlleroptions "volcano.sh/volcano/cmd/controller-manager/app/options"
	scheduler "volcano.sh/volcano/cmd/scheduler/app"
	scheduleroptions "volcano.sh/volcano/cmd/scheduler/app/options"
	webhooks "volcano.sh/volcano/cmd/webhook-manager/app"
	webhookoptions "volcano.sh/volcano/cmd/webhook-manager/app/options"
	_ "volcano.sh/volcano/pkg/controllers/colocationconfig"
	_ "volcano.sh/volcano/pkg/controllers/cronjob"
	"volcano.sh/volcano/pkg/controllers/framework"
	_ "volcano.sh/volcano/pkg/controllers/garbagecollector"
	_ "volcano.sh/volcano/pkg/controllers/hypernode"
	_ "volcano.sh/volcano/pkg/controllers/job"
	_ "volcano.sh/volcano/pkg/controllers/jobflow"
	_ "volcano.sh/volcano/pkg/controllers/jobtemplate"
	_ "volcano.sh/volcano/pkg/controllers/podgroup"
	_ "volcano.sh/volcano/pkg/controllers/queue"
	_ "volcano.sh/volcano/pkg/controllers/sharding"
	_ "volcano.sh/volcano/pkg/scheduler/actions"
	_ "volcano.sh/volcano/pkg/scheduler/plugins"
	_ "volcano.sh/volcano/pkg/scheduler/util/assert"
	"volcano.sh/volcano/pkg/util"
	"volcano.sh/volcano/pkg/version"
	_ "volcano.sh/volcano/pkg/webhooks/admission/cronjobs/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/hypernodes/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/jobflows/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/jobs/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/jobs/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/podgroups/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/podgroups/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/pods/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/pods/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/queues/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/queues/validate"
)

// program is one of Volcano's: it adds its flags to pflag.CommandLine and returns how to run it.
type program func() (printVersion *bool, run func() error)

var programs = map[string]program{
	"vc-scheduler":          schedule,
	"vc-controller-manager": control,
	"vc-webhook-manager":    admit,
}

func main() {
	name := filepath.Base(os.Args[0])
	prepare, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is not one of Volcano's programs\n", name)
		os.Exit(2)
	}
	klog.InitFlags(nil)
	flush := pflag.Duration("log-flush-frequency", 5*time.Second, "Maximum time between log flushes")
	printVersion, run := prepare()
	cliflag.InitFlags()
	if *printVersion {
		version.PrintVersionAndExit()
	}
	klog.StartFlushDaemon(*flush)
	defer klog.Flush()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func schedule() (*bool, func() error) {
	options := scheduleroptions.NewServerOption()
	options.AddFlags(pflag.CommandLine)
	elect(&options.LeaderElection, util.GenerateComponentName(options.SchedulerNames))
	options.RegisterOptions()
	return &options.PrintVersion, func() error {
		if err := options.CheckOptionOrDie(); err != nil {
			return err
		}
		if options.CaCertFile != "" && options.CertFile != "" && options.KeyFile != "" {
			if err := options.ParseCAFiles(nil); err != nil {
				return err
			}
		}
		return scheduler.Run(options)
	}
}

func control() (*bool, func() error) {
	options := controlleroptions.NewServerOption()
	var names []string
	framework.ForeachController(func(controller framework.Controller) {
		names = append(names, controller.Name())
	})
	slices.Sort(names)
	options.AddFlags(pflag.CommandLine, names)
	elect(&options.LeaderElection, "vc-controller-manager")
	return &options.PrintVersion, func() error {
		if err := options.CheckOptionOrDie(); err != nil {
			return err
		}
		if options.CaCertFile != "" && options.CertFile != "" && options.KeyFile != "" {
			if err := options.ParseCAFiles(nil); err != nil {
				return err
			}
		}
		return controllers.Run(options)
	}
}

func admit() (*bool, func() error) {
	options := webhookoptions.NewConfig()
	options.AddFlags(pflag.CommandLine)
	return &options.PrintVersion, func() error {
		if err := options.CheckPortOrDie(); err != nil {
			return err
		}
		if err := options.ParseCAFiles(nil); err != nil {
			return err
		}
		return webhooks.Run(options)
	}
}

// elect adds the flags of leader election and of feature gates.
func elect(election *config.LeaderElectionConfiguration, resource string) {
	feature.DefaultMutableFeatureGate.AddFlag(pflag.CommandLine)
	util.LeaderElectionDefault(election)
	election.ResourceName = resource
	leaderelection.BindLeaderElectionFlags(election, pflag.CommandLine)
}
