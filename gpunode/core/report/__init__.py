"""The report about a fleet: its values, what they are made from, and the forms that they are written in."""

from gpunode.core.report.host import make_host as make_host
from gpunode.core.report.summary import make_report as make_report
